/* Any bytes as a session of a small model: refused with a sentence, or a sequence that goes on and can be saved. The first byte
 * says which scheme the rows have and whether it is a weft session, whose checksum is set right, or an MLX prompt cache. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cache/checksum.h"
#include "cache/session.h"
#include "checkpoint/safetensors.h"

int LLVMFuzzerInitialize(int *n, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { N_ATTENTION = 2, N_CACHES = 2, MOST_ROWS = 200 };
static const struct session_identity identity = {.model = 1, .model_name = "m", .arithmetic = "a", .adapters = ""};
static const uint8_t is_attention[] = {0, 1};
static const struct mlx_layout layout = {is_attention, 2, "m"};
static struct backend backend;
static struct cache *caches[N_CACHES];
static char path[] = "/tmp/weft-fuzz-XXXXXX", saved[sizeof path + 12];

int LLVMFuzzerInitialize(int *n, char ***arguments) {
    (void)n, (void)arguments;
    static struct pool *pool;
    int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0 && !pool_new(&pool, 1, NULL));
    snprintf(saved, sizeof saved, "%s.saved", path);
    struct backend_options o = {.pool = pool, .isa = "portable"};
    CHECK(!backend_cpu.open(&backend, &o, NULL));
    const struct cache_shape shape = {.n_attention = N_ATTENTION, .n_mtp = 1, .n_delta = 1, .n_kv_heads = 1, .head_dim = 32,
                                      .hidden = 4, .delta = {1, 1, 8, 8, 4}};
    for (int i = 0; i < N_CACHES; i++) {
        struct kv_scheme k[N_ATTENTION];
        for (int j = 0; j < N_ATTENTION; j++) CHECK(!kv_scheme_parse(&k[j], i ? "4" : "16", 32, NULL));
        struct cache_options c = {.backend = &backend, .schemes = k, .kv_start = 0, .memory_bytes = 1 << 22,
                                  .snapshot_bytes = 1 << 20, .max_undo_rows = 4, .max_context_rows = MOST_ROWS};
        CHECK(!cache_new(&caches[i], &shape, &c, NULL));
    }
    return 0;
}

/* A file that is whole but for its checksum gets the right one: what lies behind the check is read too. */
static void set_checksum(uint8_t *bytes, size_t n_bytes) {
    static const char *const keys[] = {"weft.session", "model", "model_name", "arithmetic", "scheme", "shape",
                                       "adapters", "adapter_hash", "rows", "mtp_rows", "mtp_aligned"};
    static const char *const names[] = {"tokens", "keys", "positions", "low", "high", "mtp", "state", "hidden"};
    struct safetensors *f;
    struct weft_error e;
    struct checksum sum;
    if (n_bytes < 8 || safetensors_open_bytes(&f, bytes, n_bytes, "f", &e)) return;
    checksum_init(&sum);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value = safetensors_metadata(f, keys[i]);
        if (value) checksum_add_text(&sum, keys[i]), checksum_add_text(&sum, value);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct tensor *t = safetensors_find(f, names[i]);
        if (t) checksum_add(&sum, t->data, t->n_bytes);
    }
    uint64_t value = checksum_get(&sum);
    safetensors_close(f);
    memcpy(bytes + n_bytes - sizeof value, &value, sizeof value);
}

static int load(struct sequence **s, struct cache *c, int mlx, const char *from, struct weft_error *e) {
    int n_tokens;
    int code = mlx ? session_load_mlx(s, c, from, &layout, &n_tokens, e) : session_load(s, c, from, &identity, 0, e);
    CHECK(!code || (e->code < 0 && e->message[0]));
    CHECK(code || !mlx || n_tokens == 0 || n_tokens == sequence_rows(*s));
    return code;
}

/* What was loaded is saved and loaded again. */
static void save_again(struct sequence *s, struct cache *c, int mlx) {
    struct weft_error e;
    struct sequence *again;
    CHECK(!(mlx ? session_save_mlx(s, saved, &layout, &e) : session_save(s, saved, &identity, &e)));
    CHECK(!load(&again, c, mlx, saved, &e) && sequence_rows(again) == sequence_rows(s));
    sequence_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    if (n_bytes < 2) return 0;
    int mlx = bytes[0] & 1;
    struct cache *c = caches[bytes[0] >> 1 & 1];
    struct sequence *s;
    struct weft_error e = {0};
    uint8_t *copy = mem_alloc(n_bytes - 1);
    CHECK(copy);
    memcpy(copy, bytes + 1, n_bytes - 1);
    if (!mlx) set_checksum(copy, n_bytes - 1);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(copy, 1, n_bytes - 1, f) == n_bytes - 1 && fclose(f) == 0);
    mem_free(copy);
    if (load(&s, c, mlx, path, &e)) return 0;
    int32_t token = 1;
    struct group g = {.seq = s, .n_rows = 1, .tokens = &token};
    struct batch b = {.groups = &g, .n_groups = 1};
    if (!cache_begin(c, &b, &e)) cache_commit(c, &b, NULL);
    if (sequence_rows(s) > 0) save_again(s, c, mlx);
    sequence_free(s);
    CHECK(cache_used_bytes(c) == 0);
    return 0;
}

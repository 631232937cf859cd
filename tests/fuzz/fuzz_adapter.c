/* Any bytes as an adapter of a small model: the config up to a zero byte, the tensors behind it. Refused with a sentence, or
 * opened, reported and summed. The files lie in a folder of the process's own. */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lora/adapter.h"

int LLVMFuzzerInitialize(int *n, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { HIDDEN = 8, WIDE = 6, VOCAB = 10, EXPERTS = 2, N_TARGETS = 8 };
static float values[VOCAB * HIDDEN];
static struct weight narrow, wide, embed;
static struct linear linear[3];
static struct backend backend;
static struct adapter_base base;
static char folder[] = "/tmp/weft-fuzz-XXXXXX";

static struct weight matrix(int rows, int cols) {
    return (struct weight){.repr = representation_find("f32"), .name = "w", .file = "f", .n_rows = rows, .n_cols = cols,
                           .dtype = DTYPE_F32, .bits = 32, .data = (const uint8_t *)values, .row_bytes = (size_t)cols * 4};
}

static struct adapter_target vector(const char *name, enum target_kind kind) {
    return (struct adapter_target){.name = name, .kind = kind, .values = values, .n_values = HIDDEN};
}

int LLVMFuzzerInitialize(int *n, char ***arguments) {
    (void)n, (void)arguments;
    static struct adapter_target t[N_TARGETS];
    static struct pool *pool;
    for (int i = 0; i < VOCAB * HIDDEN; i++) values[i] = (float)(i % 7) - 3;
    wide = matrix(WIDE, HIDDEN), narrow = matrix(HIDDEN, WIDE), embed = matrix(VOCAB, HIDDEN);
    CHECK(mkdtemp(folder) && !pool_new(&pool, 1, NULL));
    struct backend_options o = {.pool = pool, .isa = "portable"};
    CHECK(!backend_cpu.open(&backend, &o, NULL));
    const struct weight *w[3] = {&wide, &narrow, &embed};
    static const char *const names[] = {"layers.0.mlp.up_proj", "layers.0.mlp.down_proj", "lm_head"};
    for (int i = 0; i < 3; i++) {
        CHECK(!backend_cpu.linear_choose(&backend, w[i], &linear[i], NULL));
        t[i] = (struct adapter_target){.name = names[i], .kind = TARGET_LINEAR, .n_in = (int)w[i]->n_cols,
                                       .n_out = (int)w[i]->n_rows, .weight = w[i], .linear = &linear[i]};
    }
    t[3] = (struct adapter_target){.name = "embed_tokens", .kind = TARGET_EMBEDDING, .n_in = VOCAB, .n_out = HIDDEN,
                                   .weight = &embed};
    t[4] = vector("norm.weight", TARGET_GAIN), t[5] = vector("layers.0.linear_attn.A_log", TARGET_A_LOG);
    t[6] = vector("layers.0.linear_attn.norm.weight", TARGET_VECTOR);
    t[7] = (struct adapter_target){.name = "layers.0.mlp.switch_mlp.up_proj", .kind = TARGET_EXPERTS, .n_in = HIDDEN,
                                   .n_out = WIDE, .n_experts = EXPERTS};
    base = (struct adapter_base){.targets = t, .n_targets = N_TARGETS, .embedding = 3, .head = 2, .tied = 1, .backend = &backend};
    return 0;
}

static void write_file(const char *name, const uint8_t *bytes, size_t n) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    const uint8_t *end = memchr(bytes, 0, n_bytes);
    if (!end) return 0;
    size_t n = (size_t)(end - bytes);
    struct adapter *a = NULL;
    struct adapter_sets sets;
    struct adapter_set *s = NULL;
    struct weft_error e = {0};
    write_file("adapter_config.json", bytes, n);
    write_file("adapter_model.safetensors", end + 1, n_bytes - n - 1);
    write_file("adapters.safetensors", end + 1, n_bytes - n - 1);
    if (adapter_open(&a, folder, &base, &e)) {
        CHECK(e.code < 0 && e.message[0]);
        return 0;
    }
    struct buf text;
    buf_init(&text);
    adapter_report(a, &text);
    CHECK(text.n && adapter_bytes(a));
    buf_drop(&text);
    adapter_sets_init(&sets);
    for (int half = 0; half < 2; half++) {
        int code = adapter_sets_get(&sets, &s, &(struct adapter_use){a, half ? 0.5f : 1}, 1, &e);
        CHECK(half || (!code && s));
        if (!code) adapter_set_drop(s);
    }
    adapter_sets_drop(&sets);
    adapter_close(a);
    return 0;
}

/* What sequence memory costs: bytes a row and scheme, a step's bookkeeping, snapshots, restoring from the tree and from disk.
 *     bench_cache [FOLDER for the session files, default .]
 * No model runs: pages and states hold zeros that were written once, so that they are real memory. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/session.h"
#include "cache/state.h"
#include "cache/tree.h"

struct geometry { const char *name; int n_attention, n_delta, n_kv_heads, key_heads, value_heads, hidden; };
static const struct geometry geometries[] = {
    {"0.8b", 7, 18, 2, 16, 16, 1024}, {"4b", 9, 24, 4, 16, 32, 2560}, {"27b", 17, 48, 4, 16, 48, 5120},
};
static const char *const schemes[] = {"16", "8", "6", "5", "4", "3", "2", "turbo:k8v8", "turbo:k8v4", "turbo:k8v3", "turbo:k4v3"};
enum { N_SCHEMES = sizeof schemes / sizeof *schemes, ROWS = 16384, CHUNK = 512, STEPS = 2000, LOADS = 3, MOST_LAYERS = 32 };

static struct cache_shape shape_of(const struct geometry *g) {
    return (struct cache_shape){.n_attention = g->n_attention, .n_mtp = 1, .n_delta = g->n_delta, .n_kv_heads = g->n_kv_heads,
                                .head_dim = 256, .hidden = g->hidden,
                                .delta = {g->key_heads, g->value_heads, 128, 128, 4}};
}

static struct cache_options options_of(struct backend *b, const char *scheme, struct kv_scheme out[MOST_LAYERS]) {
    for (int i = 0; i < MOST_LAYERS; i++) CHECK(kv_scheme_parse(&out[i], scheme, 64, NULL) == 0);
    return (struct cache_options){.backend = b, .schemes = out, .memory_bytes = (size_t)8 << 30,
                                  .snapshot_bytes = (size_t)2 << 30,
                                  .max_undo_rows = 9};
}

static void print_sizes(struct backend *b) {
    printf("bytes of one row, all main attention layers (the MTP layer has pages of its own, where it runs)\n%-14s", "scheme");
    for (int g = 0; g < 3; g++) printf("%10s", geometries[g].name);
    printf("\n");
    for (int s = 0; s < N_SCHEMES; s++) {
        printf("%-14s", schemes[s]);
        for (int g = 0; g < 3; g++) {
            struct kv_scheme list[MOST_LAYERS];
            struct cache_shape shape = shape_of(&geometries[g]);
            struct cache_options o = options_of(b, schemes[s], list);
            struct cache_bytes size;
            cache_sizes(&shape, &o, &size);
            printf("%10.0f", (double)size.page / BLOCK_ROWS);
        }
        printf("\n");
    }
}

static void step(struct cache *c, struct sequence *s, const int32_t *tokens, int n, int undo, int keep) {
    struct group g = {.seq = s, .n_rows = n, .tokens = tokens, .undo = undo};
    struct batch b = {.groups = &g, .n_groups = 1};
    CHECK(cache_begin(c, &b, NULL) == 0);
    cache_commit(c, &b, &keep);
}

static void run(struct backend *b, const struct geometry *g, const char *folder) {
    struct kv_scheme list[MOST_LAYERS];
    struct cache_shape shape = shape_of(g);
    struct cache_options o = options_of(b, "8", list);
    struct cache_bytes size;
    struct cache *c;
    struct tree *t;
    struct sequence *s, *r;
    int32_t *tokens = mem_new(ROWS + STEPS, sizeof *tokens);
    CHECK(tokens && cache_new(&c, &shape, &o, NULL) == 0 && tree_new(&t, c, NULL) == 0 && sequence_new(&s, c, NULL) == 0);
    CHECK(sequence_reserve(s, ROWS + STEPS + 16, NULL) == 0);
    for (int i = 0; i < ROWS + STEPS; i++) tokens[i] = i;
    cache_sizes(&shape, &o, &size);
    double before = clock_ms();
    for (int at = 0; at < ROWS; at += CHUNK) step(c, s, tokens + at, CHUNK, 0, CHUNK);
    double prompt_ms = clock_ms() - before;
    for (int i = 0; i < s->n_blocks[HIGH]; i++) memset(items_at(&c->pages[HIGH], s->pages[HIGH][i]), 0x11, size.page);
    memset(items_at(&c->states, s->slot), 0x11, cache_state_bytes(c));
    printf("%s: state %.1f MB, log %.2f MB for %d rows, page of 64 rows %.2f MB (8 bit)\n", g->name, (double)size.state / 1e6,
           (double)size.log / 1e6, o.max_undo_rows, (double)size.page / 1e6);
    before = clock_ms();
    for (int i = 0; i < STEPS; i++) step(c, s, tokens + ROWS + i, 1, 0, 1);
    printf("  begin + commit: one row at depth %d %.2f us; a chunk of %d rows %.1f us\n", ROWS,
           (clock_ms() - before) * 1e3 / STEPS, CHUNK,
           prompt_ms * 1e3 / (ROWS / CHUNK));
    before = clock_ms();
    CHECK(tree_store_end(t, s, NULL) == 0);
    printf("  snapshot and store at %d rows %.1f ms", s->rows, clock_ms() - before);
    struct prompt_rows p = {.tokens = tokens, .n_rows = ROWS + STEPS + 0};
    float *hidden = mem_new((size_t)shape.hidden, sizeof *hidden);
    CHECK(hidden);
    sequence_set_hidden(s, hidden);
    CHECK(tree_store_end(t, s, NULL) == 0 && sequence_new(&r, c, NULL) == 0);
    before = clock_ms();
    int rows = tree_restore(t, r, &p, NULL);
    printf("; restore of %d rows from the tree %.1f ms\n", rows, clock_ms() - before);
    sequence_free(r);
    char path[4096];
    snprintf(path, sizeof path, "%s/bench_cache.session", folder);
    struct session_identity id = {.model = 1, .arithmetic = ""};
    struct weft_error e = {0};
    struct stat st;
    before = clock_ms();
    CHECK(session_save(s, path, &id, &e) == 0 && stat(path, &st) == 0);
    double save_ms = clock_ms() - before;
    printf("  session of %d rows: %.1f MB, save %.0f ms, load", s->rows, (double)st.st_size / 1e6, save_ms);
    for (int i = 0; i < LOADS; i++) { /* the first into memory that was never used, the next into what it left */
        before = clock_ms();
        CHECK(session_load(&r, c, path, &id, 0, &e) == 0);
        printf(" %.0f", clock_ms() - before);
        sequence_free(r);
    }
    printf(" ms\n");
    unlink(path);
    sequence_free(s), tree_free(t), cache_free(c);
    mem_free(tokens), mem_free(hidden);
}

int main(int argc, char **argv) {
    struct pool *pool;
    struct backend b;
    struct weft_error e;
    struct backend_options o = {0};
    if (pool_new(&pool, 1, &e)) return 1;
    o.pool = pool;
    if (backend_cpu.open(&b, &o, &e)) return fprintf(stderr, "%s\n", e.message), 1;
    print_sizes(&b);
    for (int g = 0; g < 3; g++) run(&b, &geometries[g], argc > 1 ? argv[1] : ".");
    backend_cpu.close(&b);
    pool_free(pool);
    return 0;
}

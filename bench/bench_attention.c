/* Attention over pages: prompts and steps at depth, per KV scheme, with bandwidth and peak beside them.
 *
 *     bench_attention [--isa NAME] [--threads N] [--heads Q,KV,D] [--depth N] [--rows N] [SCHEME...] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../bench/sample.h"

#include "backend/backend.h"
#include "base/clock.h"
#include "quant/kv.h"

enum { LAYERS = 6, REPEATS = 9 };

struct bench { struct backend b; struct attention_shape s; int threads, depth, rows; const char *isa; };

static void run_scheme(struct bench *b, const char *name) {
    struct kv_scheme s;
    struct weft_error e;
    if (kv_scheme_parse(&s, name, 64, &e) || kv_scheme_check(&s, b->s.head_dim, &e)) {
        printf("%s: %s\n", name, e.message);
        return;
    }
    int d = b->s.head_dim, most = b->depth > b->rows ? b->depth : b->rows, pages = most / KV_PAGE_ROWS + 1;
    int64_t k = (int64_t)kv_k_bytes(&s, d), head = k + (int64_t)kv_v_bytes(&s, d);
    size_t bytes = (size_t)(head * b->s.n_kv_heads * pages), n = (size_t)b->rows;
    size_t query = (size_t)(b->s.n_heads * d), key = (size_t)(b->s.n_kv_heads * d);
    float *q_gate = floats(n * 2 * query), *keys = floats(n * key), *values = floats(n * key), *q = floats(n * query),
          *out = floats(n * query), *gain = floats((size_t)d), *positions = floats(3 * n), inv_freq[256] = {0};
    uint8_t axis[256] = {0}, *memory[LAYERS];
    int32_t *page = mem_new((size_t)pages, sizeof *page);
    for (int i = 0; i < pages; i++) page[i] = i;
    struct attention_group group = {0, b->rows, 0, page, page};
    struct op ops[3 * LAYERS];
    for (int y = 0; y < LAYERS; y++) {
        memory[y] = mem_map_pages(bytes);
        struct kv_store store = {s.k, s.v, s.k_bits, s.v_bits, s.group, memory[y], head * b->s.n_kv_heads, head, k};
        struct kv_layer kv = {store, store, 0};
        struct op_attention a = {b->s, q, q_gate, kv, &group, 1, b->rows,
                                 {.width = (int)query, .padded = rows_pad((int)query), .forms = FORM_F32, .f32 = out}};
        ops[3 * y] = (struct op){.kind = OP_ATTENTION_PREPARE, .wait = 1, .attention_prepare = {
            b->s, q_gate, keys, values, gain, gain, 1e-6f, inv_freq, axis, positions, q, kv, &group, 1, b->rows}};
        ops[3 * y + 1] = (struct op){.kind = OP_ATTENTION, .wait = 1, .attention = a};
        ops[3 * y + 2] = (struct op){.kind = OP_ATTENTION_MERGE, .wait = 1, .attention = a};
    }
    double prepare[3], prompt[3];
    for (int i = 0; i < 3; i++) { /* one layer */
        double t0 = clock_ms();
        backend_cpu.run(&b->b, ops, 1);
        double t1 = clock_ms();
        backend_cpu.run(&b->b, ops + 1, 2);
        prepare[i] = t1 - t0, prompt[i] = clock_ms() - t1;
    }
    double flops = 4.0 * (double)query * (double)b->rows * (double)(b->rows + 1) / 2.0;
    printf("%-11s prompt of %d: prepare %.1f us a row, attention %.2f us a row, %.0f GFLOP/s", name, b->rows,
           median(prepare, 3) * 1e3 / b->rows, median(prompt, 3) * 1e3 / b->rows, flops / median(prompt, 3) / 1e6);
    for (int y = 0; y < LAYERS; y++) /* every page holds real rows */
        for (int at = 0; at < b->depth; at += group.n_rows) {
            group.n_before = at, group.n_rows = b->depth - at < b->rows ? b->depth - at : b->rows;
            for (int i = 0; i < 3; i++) ops[3 * y].attention_prepare.n_rows = group.n_rows;
            backend_cpu.run(&b->b, ops + 3 * y, 1);
        }
    group.n_before = b->depth, group.n_rows = 1;
    for (int i = 0; i < 3 * LAYERS; i++)
        if (i % 3 == 0) ops[i].attention_prepare.n_rows = 1;
        else ops[i].attention.n_rows = 1;
    double step[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        double t0 = clock_ms();
        backend_cpu.run(&b->b, ops, 3 * LAYERS);
        step[i] = clock_ms() - t0;
    }
    double read = (double)(head * b->s.n_kv_heads) * b->depth / KV_PAGE_ROWS * LAYERS;
    printf(" | step at %d, %d layers: %.3f ms, best %.3f, %.1f GB/s\n", b->depth, LAYERS, median(step, REPEATS), step[0],
           read / median(step, REPEATS) / 1e6);
    fflush(stdout);
    for (int y = 0; y < LAYERS; y++) mem_free_pages(memory[y], bytes);
    mem_free_pages(q_gate, n * 2 * query * 4), mem_free_pages(keys, n * key * 4), mem_free_pages(values, n * key * 4);
    mem_free_pages(q, n * query * 4), mem_free_pages(out, n * query * 4), mem_free_pages(gain, (size_t)d * 4);
    mem_free_pages(positions, 3 * n * 4), mem_free(page);
}

int main(int argc, char **argv) {
    struct bench b = {.s = {8, 2, 256, 64}, .threads = 0, .depth = 16384, .rows = 4096};
    static const char *const usual[] = {"16", "8", "4", "6", "turbo:k8v3", "f32"};
    const char *schemes[32];
    int n = 0;
    for (int i = 1; i < argc && n < 32; i++) {
        if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc) b.isa = argv[++i];
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) b.threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--depth") == 0 && i + 1 < argc) b.depth = atoi(argv[++i]);
        else if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc) b.rows = atoi(argv[++i]);
        else if (strcmp(argv[i], "--heads") == 0 && i + 1 < argc)
            sscanf(argv[++i], "%d,%d,%d", &b.s.n_heads, &b.s.n_kv_heads, &b.s.head_dim);
        else schemes[n++] = argv[i];
    }
    struct pool *pool;
    struct weft_error e;
    struct step_limits l = {.max_rows = b.rows, .max_groups = 1, .max_context_rows = b.depth + 1, .n_heads = b.s.n_heads,
                            .n_kv_heads = b.s.n_kv_heads, .head_dim = b.s.head_dim, .max_width = 64};
    if (pool_new(&pool, b.threads, &e) || backend_cpu.open(&b.b, &(struct backend_options){.pool = pool, .isa = b.isa}, &e) ||
        backend_cpu.reserve(&b.b, &l, &e)) {
        fprintf(stderr, "%s\n", e.message);
        return 1;
    }
    printf("%s, %d threads, %d query and %d kv heads of %d\n", backend_cpu.isa(&b.b), pool_threads(pool), b.s.n_heads,
           b.s.n_kv_heads, b.s.head_dim);
    if (!n)
        for (; n < 6; n++) schemes[n] = usual[n];
    for (int i = 0; i < n; i++) run_scheme(&b, schemes[i]);
    backend_cpu.close(&b.b);
    pool_free(pool);
    return 0;
}

/* The delta rule: prompts and steps, with state bandwidth.
 *
 *     bench_delta [--isa NAME] [--threads N] [--heads K,V,D] [--rows N] [--layers N] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../bench/sample.h"

#include "backend/backend.h"
#include "base/clock.h"

enum { MOST_LAYERS = 512, REPEATS = 9, WAIT = 4 };

/* Median time of `n_ops` ops. */
static double time_ops(struct backend *b, const struct op *ops, int n_ops) {
    double ms[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        double t0 = clock_ms();
        backend_cpu.run(b, ops, n_ops);
        ms[i] = clock_ms() - t0;
    }
    return median(ms, REPEATS);
}

int main(int argc, char **argv) {
    struct delta_shape s = {16, 16, 128, 128, 4};
    int threads = 0, rows = 512, layers = 18;
    const char *isa = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--isa") == 0) isa = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0) threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--rows") == 0) rows = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--layers") == 0 && atoi(argv[i + 1]) <= MOST_LAYERS) layers = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--heads") == 0 &&
                 sscanf(argv[i + 1], "%d,%d,%d", &s.key_heads, &s.value_heads, &s.key_dim) == 3)
            s.value_dim = s.key_dim;
    }
    struct pool *pool;
    struct backend b;
    struct weft_error e;
    struct step_limits l = {.max_rows = rows, .max_groups = 1, .key_heads = s.key_heads, .value_heads = s.value_heads,
                            .key_dim = s.key_dim, .value_dim = s.value_dim, .conv_kernel = 4, .max_width = 64};
    if (pool_new(&pool, threads, &e) || backend_cpu.open(&b, &(struct backend_options){.pool = pool, .isa = isa}, &e) ||
        backend_cpu.reserve(&b, &l, &e)) {
        fprintf(stderr, "%s\n", e.message);
        return 1;
    }
    size_t c = (size_t)(2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim), n = (size_t)rows, hv = (size_t)s.value_heads;
    size_t keys = (size_t)(s.key_heads * s.key_dim), values = hv * (size_t)s.value_dim, state = values * (size_t)s.key_dim;
    float *qkv = floats(n * c), *a = floats(n * hv), *beta_in = floats(n * hv), *weight = floats(4 * c), *rate = floats(hv),
          *bias = floats(hv), *mixed = floats(n * c), *decay = floats(n * hv), *beta = floats(n * hv),
          *out = floats(n * hv * (size_t)s.value_dim);
    for (size_t i = 0; i < hv; i++) rate[i] = -1.0f;
    struct delta_group group[MOST_LAYERS];
    struct op ops[2 * MOST_LAYERS];
    for (int y = 0; y < layers; y++) {
        group[y] = (struct delta_group){.n_rows = rows, .state = floats(state), .conv = floats(3 * c)};
        ops[2 * y] = (struct op){.kind = OP_DELTA_PREPARE, .wait = 1, .delta_prepare = {
            s, qkv, a, beta_in, weight, NULL, rate, bias, mixed, decay, beta, &group[y], 1, rows}};
        ops[2 * y + 1] = (struct op){.kind = OP_DELTA, .wait = 1, .delta = {s, qkv, mixed, decay, beta, out, &group[y], 1}};
    }
    printf("%s, %d threads, %d key and %d value heads of %d\n", backend_cpu.isa(&b), pool_threads(pool), s.key_heads,
           s.value_heads, s.key_dim);
    double prepare = time_ops(&b, ops, 1), rule = time_ops(&b, ops + 1, 1);
    printf("prompt of %d, one layer: prepare %.3f us a row, rule %.3f us a row, %.0f GFLOP/s of 7 a state element\n", rows,
           prepare * 1e3 / rows, rule * 1e3 / rows, 7.0 * (double)state * rows / rule / 1e6);
    /* As caches have it: rows alone wait until there are WAIT of them, then the state is written. */
    double mean = 0;
    for (int waiting = 0; waiting <= WAIT; waiting++) {
        for (int y = 0; y < layers; y++) {
            struct delta_log *log = &group[y].pending;
            if (!log->k) *log = (struct delta_log){floats(WAIT * hv), floats(WAIT * keys), floats(WAIT * values), floats(WAIT * c)};
            group[y].n_rows = 1, group[y].n_pending = waiting, ops[2 * y].delta_prepare.n_rows = 1;
            group[y].fold = waiting < WAIT ? FOLD_NOTHING : FOLD_ALL;
            size_t n_before = (size_t)waiting;
            group[y].log = (struct delta_log){log->decay + n_before * hv, log->k + n_before * keys, log->u + n_before * values,
                                              log->conv_in + n_before * c};
        }
        double step = time_ops(&b, ops, 2 * layers);
        printf("step, %d layers, %d rows waiting%s: %.3f ms, %.1f GB/s of state\n", layers, waiting, waiting < WAIT ? "" : ", state written", step,
               (waiting < WAIT ? 4.0 : 8.0) * (double)state * layers / step / 1e6);
        mean += step / (WAIT + 1);
    }
    printf("mean %.3f ms\n", mean);
    backend_cpu.close(&b);
    pool_free(pool);
    return 0;
}

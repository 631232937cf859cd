#include "help_ops.h"

#include <math.h>

int ops_open(struct ops_device *d, const char *isa, int n_threads, const struct step_limits *l) {
    struct weft_error e;
    assert_int_equal(pool_new(&d->pool, n_threads, &e), 0);
    if (backend_cpu.open(&d->b, &(struct backend_options){.pool = d->pool, .isa = isa}, &e) != 0) {
        pool_free(d->pool);
        return 0;
    }
    assert_int_equal(backend_cpu.reserve(&d->b, l, &e), 0);
    return 1;
}

void ops_close(struct ops_device *d) {
    backend_cpu.close(&d->b);
    pool_free(d->pool);
}

void ops_run(struct ops_device *d, const struct op *ops, int n) { backend_cpu.run(&d->b, ops, n); }

float ops_random(uint64_t *state) {
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) * 0x1p-24f;
    }
    return (sum - 2.0f) * 1.7f;
}

void ops_fill(uint64_t *state, float *x, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) x[i] = scale * ops_random(state);
}

float *ops_new(size_t n) {
    float *p = calloc(n ? n : 1, sizeof *p);
    assert_non_null(p);
    return p;
}

double ops_error(const float *got, const double *want, size_t n) {
    double off = 0.0, all = 0.0;
    for (size_t i = 0; i < n; i++) {
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        all += want[i] * want[i];
    }
    return sqrt(off / (all > 0.0 ? all : 1.0));
}

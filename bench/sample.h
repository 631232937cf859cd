/* What the benchmarks of ops share: numbers to run on, and the middle of several times. */
#ifndef BENCH_SAMPLE_H
#define BENCH_SAMPLE_H
#include <stdlib.h>

#include "base/mem.h"

static inline int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* n values in [-1, 1), the same in every run. */
static inline float *floats(size_t n) {
    float *p = mem_map_pages(n * sizeof *p);
    if (!p) exit(1);
    for (size_t i = 0; i < n; i++) p[i] = (float)((i * 2654435761u >> 8) & 0xffff) / 32768.0f - 1.0f;
    return p;
}

static inline double median(double *ms, int n) {
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    return n % 2 ? ms[n / 2] : (ms[n / 2 - 1] + ms[n / 2]) / 2;
}
#endif

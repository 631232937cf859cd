/* The thread pool: one parallel region runs one function on every thread, the caller among them.
 *
 * Invariants
 * 1. Which thread does a piece of work never changes a result: work is claimed by counter, results are placed by index.
 * 2. A waiting thread spins about 20 us and then sleeps on a futex, so that a busy machine is not made busier.
 * 3. One region at a time; pool_run is called by one thread at a time and does not nest. */
#ifndef BASE_POOL_H
#define BASE_POOL_H
#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"

struct pool;
typedef void pool_fn(void *arg, int thread, int n_threads);

/* n_threads <= 0: as many as this process may run on. */
int pool_new(struct pool **out, int n_threads, struct weft_error *e);
void pool_free(struct pool *p);
int pool_threads(const struct pool *p);
void pool_run(struct pool *p, pool_fn *fn, void *arg);
/* Inside a region: returns when every thread of it has arrived. What was written before is visible after. */
void pool_barrier(struct pool *p);
/* The same. While others are on their way, meanwhile(arg) is called again and again until it returns 0; it has to be short. */
typedef int pool_meanwhile(void *arg);
void pool_barrier_with(struct pool *p, pool_meanwhile *meanwhile, void *arg);

/* n pieces cut among the threads: each takes its own share in order, so that it reads memory in order, and then what is left of the
 * others'. taken: one counter for each thread, zero before the region. -1 when none is left. */
struct pool_taken { _Alignas(64) atomic_int n; };
static inline int pool_share(int n, int thread, int n_threads) { return (int)((int64_t)n * thread / n_threads); }
static inline int pool_take(struct pool_taken *taken, int n, int thread, int n_threads) {
    for (int i = 0; i < n_threads; i++) {
        int from = thread + i < n_threads ? thread + i : thread + i - n_threads;
        int begin = pool_share(n, from, n_threads), size = pool_share(n, from + 1, n_threads) - begin;
        if (atomic_load_explicit(&taken[from].n, memory_order_relaxed) >= size) continue;
        int at = atomic_fetch_add_explicit(&taken[from].n, 1, memory_order_relaxed);
        if (at < size) return begin + at;
    }
    return -1;
}

/* The next unclaimed piece [*begin, *end) of n, `step` at a time; 0 when none is left. */
static inline int pool_claim(atomic_int *next, int n, int step, int *begin, int *end) {
    int at = atomic_fetch_add_explicit(next, step, memory_order_relaxed);
    if (at >= n) return 0;
    *begin = at, *end = at + step < n ? at + step : n;
    return 1;
}
#endif

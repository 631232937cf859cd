#define _GNU_SOURCE
#include "base/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

enum { SPIN_NS = 20000, MAX_THREADS = 1024 };

struct pool {
    int n_threads;
    pool_fn *fn;
    void *arg;
    _Alignas(64) atomic_uint region;  /* counts regions begun; workers wait for it to move */
    _Alignas(64) atomic_int arrived;  /* threads at the barrier */
    _Alignas(64) atomic_uint phase;   /* counts barriers passed */
    atomic_int sleepers;              /* threads in futex_wait on region or phase */
    atomic_int quit;
    pthread_t *threads;
    int n_started;
};

struct worker { struct pool *p; int thread; };

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static long futex(atomic_uint *word, int op, unsigned value) {
    return syscall(SYS_futex, (unsigned *)word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* Until *word differs from seen. The sleeper count is raised before the word is read again, and a waker moves the word
 * before it reads the count: one of the two sees the other. */
static void wait_change(struct pool *p, atomic_uint *word, unsigned seen, pool_meanwhile *meanwhile, void *arg) {
    int64_t until = 0;
    while (meanwhile && atomic_load_explicit(word, memory_order_acquire) == seen && meanwhile(arg)) {}
    for (int i = 0;; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
        relax();
        if ((i & 63) == 63) {
            int64_t t = now_ns();
            if (!until) until = t + SPIN_NS;
            if (t >= until) break;
        }
    }
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(word) == seen) futex(word, FUTEX_WAIT, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void move_word(struct pool *p, atomic_uint *word) {
    atomic_fetch_add(word, 1);
    if (atomic_load(&p->sleepers) > 0) futex(word, FUTEX_WAKE, MAX_THREADS);
}

void pool_barrier_with(struct pool *p, pool_meanwhile *meanwhile, void *arg) {
    if (p->n_threads == 1) return;
    unsigned phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == p->n_threads - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        move_word(p, &p->phase);
    } else {
        wait_change(p, &p->phase, phase, meanwhile, arg);
    }
}
void pool_barrier(struct pool *p) { pool_barrier_with(p, NULL, NULL); }

static void *work(void *arg) {
    struct worker w = *(struct worker *)arg;
    mem_free(arg);
    for (unsigned seen = 0;; seen++) {
        wait_change(w.p, &w.p->region, seen, NULL, NULL);
        if (atomic_load(&w.p->quit)) return NULL;
        w.p->fn(w.p->arg, w.thread, w.p->n_threads);
        pool_barrier(w.p);
    }
}

void pool_run(struct pool *p, pool_fn *fn, void *arg) {
    p->fn = fn, p->arg = arg;
    if (p->n_threads > 1) move_word(p, &p->region);
    fn(arg, 0, p->n_threads);
    pool_barrier(p);
}

int pool_new(struct pool **out, int n_threads, struct weft_error *e) {
    if (n_threads <= 0) {
        cpu_set_t set;
        n_threads = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    }
    if (n_threads > MAX_THREADS) return error_set(e, WEFT_ERROR_INPUT, "%d threads asked for, at most %d", n_threads, MAX_THREADS);
    struct pool *p = mem_new(1, sizeof *p + 64);
    if (!p) return error_memory(e, "the thread pool");
    p->n_threads = n_threads;
    p->threads = mem_new((size_t)n_threads, sizeof *p->threads);
    int code = p->threads ? 0 : error_memory(e, "the thread pool");
    for (int i = 1; i < n_threads && !code; i++) {
        struct worker *w = mem_alloc(sizeof *w);
        if (!w) { code = error_memory(e, "the thread pool"); break; }
        *w = (struct worker){p, i};
        int why = pthread_create(&p->threads[i], NULL, work, w);
        if (why) mem_free(w), code = error_set(e, WEFT_ERROR_MEMORY, "thread %d of %d cannot be started", i + 1, n_threads);
        else p->n_started++;
    }
    if (code) return pool_free(p), code;
    *out = p;
    return 0;
}

void pool_free(struct pool *p) {
    if (!p) return;
    atomic_store(&p->quit, 1);
    move_word(p, &p->region);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->threads[i], NULL);
    mem_free(p->threads);
    mem_free(p);
}

int pool_threads(const struct pool *p) { return p->n_threads; }

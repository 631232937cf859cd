#define _GNU_SOURCE
#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static atomic_int_least64_t fail_in = -1;
static atomic_int fail_sticky;
static atomic_uint_least64_t n_allocations;

/* True when this allocation is the one a test wants to see fail. */
static int must_fail(void) {
    atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fail_in, memory_order_relaxed) < 0) return 0;
    int64_t left = atomic_fetch_sub(&fail_in, 1);
    if (left > 0) return 0;
    if (atomic_load(&fail_sticky)) atomic_store(&fail_in, 0);
    return left == 0;
}

void mem_fail_at(int64_t number, int sticky) {
    atomic_store(&fail_sticky, sticky);
    atomic_store(&fail_in, number < 0 ? -1 : number);
}

uint64_t mem_count(void) { return atomic_load(&n_allocations); }

void *mem_new(size_t count, size_t size) {
    if (must_fail()) return NULL;
    return calloc(count ? count : 1, size ? size : 1);
}

void *mem_alloc(size_t bytes) {
    if (must_fail()) return NULL;
    return malloc(bytes ? bytes : 1);
}

void *mem_resize(void *p, size_t bytes) {
    if (must_fail()) return NULL;
    return realloc(p, bytes ? bytes : 1);
}

char *mem_copy_text(const char *text, size_t n) {
    char *copy = mem_alloc(n + 1);
    if (!copy) return NULL;
    if (n) memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

void mem_free(void *p) { free(p); }

enum { HUGE_PAGE = 2 << 20 };

/* Rounded so that a mapping of several MiB starts and ends on a huge page. */
static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void *mem_map_pages(size_t bytes) {
    if (must_fail() || bytes > SIZE_MAX / 2) return NULL;
    int huge = bytes >= 2 * HUGE_PAGE;
    size_t want = round_up(bytes ? bytes : 1, 4096), slack = huge ? HUGE_PAGE : 0;
    char *p = mmap(NULL, want + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (!huge) return p;
    char *start = (char *)round_up((uintptr_t)p, HUGE_PAGE);
    if (start > p) munmap(p, (size_t)(start - p));
    char *end = start + want;
    if (p + want + slack > end) munmap(end, (size_t)(p + want + slack - end));
    madvise(start, want, MADV_HUGEPAGE);
    return start;
}

void mem_free_pages(void *p, size_t bytes) {
    if (p) munmap(p, round_up(bytes ? bytes : 1, 4096));
}

void mem_release_pages(void *p, size_t bytes) {
    uintptr_t first = round_up((uintptr_t)p, 4096), last = ((uintptr_t)p + bytes) / 4096 * 4096;
    if (last > first) madvise((void *)first, last - first, MADV_DONTNEED);
}

size_t mem_peak_bytes(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (size_t)u.ru_maxrss * 1024 : 0;
}

size_t mem_resident_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    unsigned long total, resident = 0;
    if (fscanf(f, "%lu %lu", &total, &resident) != 2) resident = 0;
    fclose(f);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

struct arena_block { struct arena_block *next; size_t used, size; _Alignas(16) char data[]; };

void arena_init(struct arena *a) { *a = (struct arena){0}; }

void *arena_new(struct arena *a, size_t count, size_t size) {
    if (size && count > (SIZE_MAX / 4) / size) return NULL;
    size_t want = count * size, bytes = round_up(want > 0 ? want : 1, 16);
    struct arena_block *b = a->block;
    if (!b || b->size - b->used < bytes) {
        size_t room = bytes > 65536 ? bytes : 65536;
        b = mem_new(1, sizeof *b + room);
        if (!b) return NULL;
        b->size = room, b->next = a->block, a->block = b;
    }
    void *p = b->data + b->used;
    b->used += bytes, a->used_bytes += bytes;
    return p;
}

char *arena_copy_text(struct arena *a, const char *text, size_t n) {
    char *copy = arena_new(a, n + 1, 1);
    if (copy && n) memcpy(copy, text, n);
    return copy;
}

void arena_drop(struct arena *a) {
    for (struct arena_block *b = a->block, *next; b; b = next) next = b->next, mem_free(b);
    arena_init(a);
}

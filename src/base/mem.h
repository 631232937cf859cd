/* Checked memory. Every allocation of the library passes through here, so that tests can make the nth one fail.
 * All functions are thread-safe. Sizes are in bytes. */
#ifndef BASE_MEM_H
#define BASE_MEM_H
#include <stddef.h>
#include <stdint.h>

/* NULL when there is no memory. Zero bytes gives a valid pointer. Contents of mem_new are zero. */
void *mem_new(size_t count, size_t size);
void *mem_alloc(size_t bytes);
void *mem_resize(void *p, size_t bytes);
/* A copy of n bytes with a zero byte behind them. */
char *mem_copy_text(const char *text, size_t n);
void mem_free(void *p);

/* 64-byte aligned, zeroed, in 2 MiB pages where the kernel grants them when 4 MiB or more. Freed by mem_free_pages alone.
 * Address space only: pages are taken when first touched. */
void *mem_map_pages(size_t bytes);
void mem_free_pages(void *p, size_t bytes);
/* Gives the physical memory of whole 4 KiB pages inside [p, p + bytes) back; they read as zero afterwards. */
void mem_release_pages(void *p, size_t bytes);

/* Tests: the allocation with this number (0 = the next) fails, and so do all after it when `sticky`. Negative: never. */
void mem_fail_at(int64_t number, int sticky);
/* Allocations made so far by mem_new, mem_alloc, mem_resize and mem_map_pages; a step must not move it. */
uint64_t mem_count(void);

/* Highest resident size of this process, and the present one. */
size_t mem_peak_bytes(void);
size_t mem_resident_bytes(void);

/* A bump allocator for what lives and dies together. Returns NULL when there is no memory. */
struct arena_block;
struct arena { struct arena_block *block; size_t used_bytes; };
void arena_init(struct arena *a);
void *arena_new(struct arena *a, size_t count, size_t size); /* zeroed, 16-byte aligned */
char *arena_copy_text(struct arena *a, const char *text, size_t n);
void arena_drop(struct arena *a);
#endif

/* A 64-bit sum over a stream of bytes that finds damage, not forgery. The same whatever pieces the stream came in. */
#ifndef CACHE_CHECKSUM_H
#define CACHE_CHECKSUM_H
#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_LANES = 4, CHECKSUM_STRIPE = CHECKSUM_LANES * 8 };
struct checksum { uint64_t lane[CHECKSUM_LANES], n_bytes; uint8_t tail[CHECKSUM_STRIPE]; };
void checksum_init(struct checksum *c);
void checksum_add(struct checksum *c, const void *bytes, size_t n);
void checksum_add_text(struct checksum *c, const char *text); /* its end included */
uint64_t checksum_get(const struct checksum *c);
#endif

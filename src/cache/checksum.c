#include "cache/checksum.h"

#include <string.h>

/* Odd, so that each step is a bijection of the lane: no change of one word can go unseen. */
static const uint64_t multiplier = 0x9e3779b97f4a7c15u;

void checksum_init(struct checksum *c) {
    *c = (struct checksum){.lane = {1, 2, 3, 4}};
}

static void add_stripe(struct checksum *c, const uint8_t *stripe) {
    for (int i = 0; i < CHECKSUM_LANES; i++) {
        uint64_t word;
        memcpy(&word, stripe + 8 * i, 8);
        uint64_t h = (c->lane[i] ^ word) * multiplier;
        c->lane[i] = h << 29 | h >> 35;
    }
}

void checksum_add(struct checksum *c, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    size_t held = c->n_bytes % CHECKSUM_STRIPE;
    c->n_bytes += n;
    if (held) {
        size_t take = CHECKSUM_STRIPE - held < n ? CHECKSUM_STRIPE - held : n;
        memcpy(c->tail + held, p, take);
        p += take, n -= take;
        if (held + take < CHECKSUM_STRIPE) return;
        add_stripe(c, c->tail);
    }
    for (; n >= CHECKSUM_STRIPE; p += CHECKSUM_STRIPE, n -= CHECKSUM_STRIPE) add_stripe(c, p);
    if (n) memcpy(c->tail, p, n);
}

void checksum_add_text(struct checksum *c, const char *text) { checksum_add(c, text, strlen(text) + 1); }

uint64_t checksum_get(const struct checksum *c) {
    struct checksum end = *c;
    size_t held = c->n_bytes % CHECKSUM_STRIPE;
    if (held) {
        memset(end.tail + held, 0, CHECKSUM_STRIPE - held);
        add_stripe(&end, end.tail);
    }
    uint64_t h = c->n_bytes * multiplier;
    for (int i = 0; i < CHECKSUM_LANES; i++) {
        h = (h ^ end.lane[i]) * multiplier;
        h ^= h >> 31;
    }
    return h;
}

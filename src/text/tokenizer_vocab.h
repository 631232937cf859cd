/* The vocabulary and its merges, as hashed tables: bytes to id, id to bytes, pair of ids to rank and result.
 *
 * Invariants after vocab_seal
 * 1. Every byte that UTF-8 can hold has a token (byte_id >= 0), every id in a table is below n_ids.
 * 2. `bytes` has 16 spare bytes at its end.
 * 3. Tables are at most half full and never change; `whole` alone is written later, atomically, always with the same value. */
#ifndef TEXT_TOKENIZER_VOCAB_H
#define TEXT_TOKENIZER_VOCAB_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"

enum { VOCAB_IDS_MAX = 1 << 22, VOCAB_NO_RANK = INT32_MAX };
enum { TOKEN_USED = 1, TOKEN_ADDED = 2, TOKEN_SPECIAL = 4, TOKEN_RAW = 8 }; /* RAW: never the result of BPE */
enum { PAIR_BITS = 21 }; /* 256 KiB: in the second-level cache, which the table is not */
enum { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };

struct piece { uint32_t start, n; };
/* A piece for decoding, in one place of memory where nearly all fit; n = SHORT_NO: longer, or nothing. */
enum { SHORT_BYTES = 15, SHORT_NO = 255 };
struct short_piece { uint8_t bytes[SHORT_BYTES], n; };
struct vocab_slot { uint64_t key; int32_t id; uint32_t n; };           /* n = 0: empty */
struct pair_slot { uint32_t left, right; int32_t rank; int32_t id; };  /* rank < 0: empty */
struct merge { int32_t left, right, id; };                             /* by rank */
struct byte_pair { int32_t rank, id; };                                /* VOCAB_NO_RANK, -1: no merge */

struct vocab {
    uint8_t *bytes; /* the pieces, one behind the other */
    size_t n_bytes, room_bytes;
    struct piece *pieces; /* [n_ids] */
    uint8_t *kinds;       /* [n_ids] TOKEN_* */
    struct short_piece *shorts; /* [n_ids], once sealed */
    atomic_uchar *whole;  /* [n_ids] does BPE of the piece's bytes give this id? found out when first asked */
    int32_t n_ids, room_ids;
    int32_t ids_max; /* no id may be as high: a short file must not ask for much memory */
    struct vocab_slot *slots; /* [1 << (64 - slot_shift)] */
    unsigned slot_shift;
    struct merge *merges; /* [n_merges], until sealed */
    int32_t n_merges, room_merges;
    struct pair_slot *pairs; /* [1 << (64 - pair_shift)] */
    unsigned pair_shift;
    uint64_t *pair_bits; /* [1 << (PAIR_BITS - 6)] a bit by the same hash: most pairs that are looked for are not there */
    struct byte_pair *byte_pairs; /* [256 * 256], the same by the bytes themselves: where every piece begins */
    int32_t byte_id[256];
};

void vocab_init(struct vocab *v); /* ids_max is VOCAB_IDS_MAX */
void vocab_drop(struct vocab *v);
/* Gives id these bytes; the caller has put them at v->bytes + v->n_bytes (vocab_reserve_bytes) or passes others to be copied.
 * Fails for an id out of range or given before. `what` names the entry in the error. */
int vocab_reserve_bytes(struct vocab *v, size_t more, struct weft_error *e);
int vocab_add(struct vocab *v, int64_t id, const void *bytes, size_t n, unsigned kind, const char *what, struct weft_error *e);
/* Hashes the pieces; two ids with the same bytes are an error. */
int vocab_index(struct vocab *v, const char *name, struct weft_error *e);
int vocab_add_merge(struct vocab *v, int32_t left, int32_t right, int32_t id, struct weft_error *e);
/* Hashes the merges and checks invariant 1. */
int vocab_seal(struct vocab *v, const char *name, struct weft_error *e);

/* Up to 8 bytes as a number of their own among pieces of the same length. */
static inline uint64_t vocab_load(const uint8_t *p, size_t n) {
    if (n >= 4) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        return low | (uint64_t)high << 32;
    }
    return n ? p[0] | (uint64_t)p[n / 2] << 8 | (uint64_t)p[n - 1] << 16 : 0;
}

/* The bytes themselves for n <= 8, else a hash of them. */
static inline uint64_t vocab_key(const uint8_t *p, size_t n) {
    if (n <= 8) return vocab_load(p, n);
    uint64_t h = n, w;
    size_t i = 0;
    for (; i + 8 < n; i += 8) {
        memcpy(&w, p + i, 8);
        h = (h ^ w) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    memcpy(&w, p + n - 8, 8);
    h = (h ^ w) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static inline uint64_t vocab_mix(uint64_t key, size_t n) { return (key ^ n << 57) * 0x9E3779B97F4A7C15u; }

/* The id whose bytes these are, or -1. */
static inline int32_t vocab_find_key(const struct vocab *v, uint64_t key, const uint8_t *p, size_t n) {
    size_t mask = ((size_t)1 << (64 - v->slot_shift)) - 1;
    for (size_t i = vocab_mix(key, n) >> v->slot_shift;; i = (i + 1) & mask) {
        const struct vocab_slot *s = v->slots + i;
        if (s->n == 0) return -1;
        if (s->key == key && s->n == n && (n <= 8 || memcmp(v->bytes + v->pieces[s->id].start, p, n) == 0)) return s->id;
    }
}
static inline int32_t vocab_find(const struct vocab *v, const uint8_t *p, size_t n) {
    return n ? vocab_find_key(v, vocab_key(p, n), p, n) : -1;
}

static inline uint64_t vocab_mix_pair(int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return (key * 0x9E3779B97F4A7C15u ^ key << 40) * 0xD6E8FEB86659FD93u;
}

/* What these two become, or NULL. */
static inline const struct pair_slot *vocab_find_pair(const struct vocab *v, int32_t left, int32_t right) {
    size_t mask = ((size_t)1 << (64 - v->pair_shift)) - 1;
    uint64_t hash = vocab_mix_pair(left, right), bit = hash >> (64 - PAIR_BITS);
    if (!(v->pair_bits[bit >> 6] >> (bit & 63) & 1)) return NULL;
    for (size_t i = hash >> v->pair_shift;; i = (i + 1) & mask) {
        const struct pair_slot *s = v->pairs + i;
        if (s->rank < 0) return NULL;
        if (s->left == (uint32_t)left && s->right == (uint32_t)right) return s;
    }
}
#endif

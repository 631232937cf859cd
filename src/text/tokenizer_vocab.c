#include "text/tokenizer_vocab.h"

#include "base/mem.h"

void vocab_init(struct vocab *v) {
    *v = (struct vocab){.ids_max = VOCAB_IDS_MAX};
    for (int b = 0; b < 256; b++) v->byte_id[b] = -1;
}

void vocab_drop(struct vocab *v) {
    mem_free(v->bytes), mem_free(v->pieces), mem_free(v->kinds), mem_free(v->shorts), mem_free(v->whole);
    mem_free(v->slots), mem_free(v->merges), mem_free(v->pairs), mem_free(v->pair_bits), mem_free(v->byte_pairs);
    vocab_init(v);
}

int vocab_reserve_bytes(struct vocab *v, size_t more, struct weft_error *e) {
    size_t want = v->n_bytes + more + 16;
    if (want <= v->room_bytes) return 0;
    if (want > UINT32_MAX) return error_set(e, WEFT_ERROR_INPUT, "the vocabulary is larger than 4 GiB");
    size_t room = want + want / 2;
    uint8_t *bytes = mem_resize(v->bytes, room);
    if (!bytes) return error_memory(e, "the vocabulary");
    memset(bytes + v->n_bytes, 0, room - v->n_bytes);
    v->bytes = bytes, v->room_bytes = room;
    return 0;
}

/* Room for ids up to and with `id`; what lies between is marked unused. */
static int reserve_ids(struct vocab *v, int32_t id, struct weft_error *e) {
    if (id < v->n_ids) return 0;
    if (id >= v->room_ids) {
        size_t room = (size_t)id + (size_t)id / 2 + 256;
        struct piece *pieces = mem_resize(v->pieces, room * sizeof *pieces);
        if (pieces) v->pieces = pieces;
        uint8_t *kinds = mem_resize(v->kinds, room);
        if (kinds) v->kinds = kinds;
        if (!pieces || !kinds) return error_memory(e, "the vocabulary");
        v->room_ids = (int32_t)room;
    }
    size_t first = (size_t)v->n_ids, count = (size_t)id + 1 - first;
    memset(v->pieces + first, 0, count * sizeof *v->pieces);
    memset(v->kinds + first, 0, count);
    v->n_ids = id + 1;
    return 0;
}

int vocab_add(struct vocab *v, int64_t id, const void *bytes, size_t n, unsigned kind, const char *what, struct weft_error *e) {
    if (id < 0 || id >= v->ids_max)
        return error_set(e, WEFT_ERROR_INPUT, "%s has id %lld, outside 0 to %d", what, (long long)id, v->ids_max - 1);
    if (id < v->n_ids && (v->kinds[id] & TOKEN_USED))
        return error_set(e, WEFT_ERROR_INPUT, "%s has id %lld, which another entry has too", what, (long long)id);
    if (vocab_reserve_bytes(v, n, e) || reserve_ids(v, (int32_t)id, e)) return e ? e->code : WEFT_ERROR_MEMORY;
    if (n && bytes != v->bytes + v->n_bytes) memcpy(v->bytes + v->n_bytes, bytes, n);
    v->pieces[id] = (struct piece){(uint32_t)v->n_bytes, (uint32_t)n};
    v->kinds[id] = (uint8_t)(TOKEN_USED | kind);
    v->n_bytes += n;
    return 0;
}

/* Bits so that `count` entries fill a table at most half. */
static unsigned table_bits(size_t count) {
    unsigned bits = 4;
    while (((size_t)1 << bits) < 2 * count) bits++;
    return bits;
}

int vocab_index(struct vocab *v, const char *name, struct weft_error *e) {
    size_t n_used = 0;
    for (int32_t id = 0; id < v->n_ids; id++) n_used += v->kinds[id] & TOKEN_USED;
    unsigned bits = table_bits(n_used + 1);
    v->slots = mem_new((size_t)1 << bits, sizeof *v->slots);
    v->whole = mem_new((size_t)v->n_ids, sizeof *v->whole);
    if (!v->slots || !v->whole) return error_memory(e, "the vocabulary");
    v->slot_shift = 64 - bits;
    size_t mask = ((size_t)1 << bits) - 1;
    for (int32_t id = 0; id < v->n_ids; id++) {
        if ((v->kinds[id] & (TOKEN_USED | TOKEN_RAW)) != TOKEN_USED || v->pieces[id].n == 0) continue;
        const uint8_t *p = v->bytes + v->pieces[id].start;
        size_t n = v->pieces[id].n;
        uint64_t key = vocab_key(p, n);
        int32_t other = vocab_find_key(v, key, p, n);
        if (other >= 0)
            return error_set(e, WEFT_ERROR_INPUT, "%s: model.vocab: ids %d and %d have the same text", name, other, id);
        size_t i = vocab_mix(key, n) >> v->slot_shift;
        while (v->slots[i].n) i = (i + 1) & mask;
        v->slots[i] = (struct vocab_slot){key, id, (uint32_t)n};
    }
    return 0;
}

int vocab_add_merge(struct vocab *v, int32_t left, int32_t right, int32_t id, struct weft_error *e) {
    if (v->n_merges == v->room_merges) {
        if (v->room_merges > INT32_MAX / 4) return error_set(e, WEFT_ERROR_INPUT, "there are too many merges");
        int32_t room = v->room_merges ? v->room_merges * 2 : 1024;
        struct merge *merges = mem_resize(v->merges, (size_t)room * sizeof *merges);
        if (!merges) return error_memory(e, "the merges");
        v->merges = merges, v->room_merges = room;
    }
    v->merges[v->n_merges++] = (struct merge){left, right, id};
    return 0;
}

static void add_pair(struct vocab *v, const struct merge *m, int32_t rank) {
    size_t mask = ((size_t)1 << (64 - v->pair_shift)) - 1;
    /* Of a merge listed twice the last place counts, as in the reference implementation. */
    struct pair_slot *s = (struct pair_slot *)vocab_find_pair(v, m->left, m->right);
    if (!s) {
        uint64_t hash = vocab_mix_pair(m->left, m->right), bit = hash >> (64 - PAIR_BITS);
        size_t i = hash >> v->pair_shift;
        while (v->pairs[i].rank >= 0) i = (i + 1) & mask;
        v->pair_bits[bit >> 6] |= (uint64_t)1 << (bit & 63);
        s = v->pairs + i;
    }
    *s = (struct pair_slot){(uint32_t)m->left, (uint32_t)m->right, rank, m->id};
}

static void fill_shorts(struct vocab *v) {
    for (int32_t id = 0; id < v->n_ids; id++) {
        struct piece piece = v->pieces[id];
        v->shorts[id].n = piece.n && piece.n <= SHORT_BYTES ? (uint8_t)piece.n : SHORT_NO;
        if (piece.n <= SHORT_BYTES) memcpy(v->shorts[id].bytes, v->bytes + piece.start, piece.n);
    }
}

/* The pairs of bytes, and that there is a token for every byte. */
static int fill_bytes(struct vocab *v, const char *name, struct weft_error *e) {
    for (int b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        v->byte_id[b] = vocab_find(v, &byte, 1);
        int in_utf8 = b != 0xC0 && b != 0xC1 && b <= 0xF4;
        if (in_utf8 && v->byte_id[b] < 0)
            return error_set(e, WEFT_ERROR_INPUT, "%s: model.vocab has no entry for the byte 0x%02X", name, b);
    }
    for (int i = 0; i < 256 * 256; i++) {
        int32_t left = v->byte_id[i >> 8], right = v->byte_id[i & 255];
        const struct pair_slot *s = left < 0 || right < 0 ? NULL : vocab_find_pair(v, left, right);
        v->byte_pairs[i] = s ? (struct byte_pair){s->rank, s->id} : (struct byte_pair){VOCAB_NO_RANK, -1};
    }
    return 0;
}

int vocab_seal(struct vocab *v, const char *name, struct weft_error *e) {
    unsigned bits = table_bits((size_t)v->n_merges + 1);
    v->pairs = mem_alloc(((size_t)1 << bits) * sizeof *v->pairs);
    v->byte_pairs = mem_alloc(256 * 256 * sizeof *v->byte_pairs);
    v->shorts = mem_new((size_t)v->n_ids, sizeof *v->shorts);
    v->pair_bits = mem_new((size_t)1 << (PAIR_BITS - 6), sizeof *v->pair_bits);
    if (!v->pairs || !v->pair_bits || !v->byte_pairs || !v->shorts) return error_memory(e, "the merges");
    v->pair_shift = 64 - bits;
    for (size_t i = 0; i < (size_t)1 << bits; i++) v->pairs[i].rank = -1;
    for (int32_t rank = 0; rank < v->n_merges; rank++) add_pair(v, v->merges + rank, rank);
    mem_free(v->merges);
    v->merges = NULL, v->room_merges = 0;
    fill_shorts(v);
    return fill_bytes(v, name, e);
}

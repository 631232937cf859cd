#include "text/tokenizer_bpe.h"

#include "base/mem.h"

/* Up to here a scan for the lowest rank is quicker than a heap: on Zen 4 they are even at 96 bytes of random letters. */
enum { SCAN_BYTES = 96 };

void bpe_drop(struct bpe *b) {
    mem_free(b->ids), mem_free(b->heap);
    *b = (struct bpe){0};
}

static int reserve(struct bpe *b, size_t n) {
    if (n <= b->room) return 0;
    size_t room = n < 256 ? 256 : n + n / 2;
    if (room > (size_t)INT32_MAX / 2) return -1;
    int32_t *ids = mem_alloc(room * 5 * sizeof *ids);
    struct bpe_heap_item *heap = mem_alloc(room * 3 * sizeof *heap);
    if (!ids || !heap) return mem_free(ids), mem_free(heap), -1;
    bpe_drop(b);
    *b = (struct bpe){ids, ids + room, ids + 2 * room, ids + 3 * room, ids + 4 * room, heap, room};
    return 0;
}

/* ids, and for each place the rank and result of the pair that begins there. */
static void start(struct bpe *b, const struct vocab *v, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) b->ids[i] = v->byte_id[p[i]];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct byte_pair *s = v->byte_pairs + p[i] * 256 + p[i + 1];
        b->ranks[i] = s->rank, b->results[i] = s->id;
    }
    b->ranks[n - 1] = VOCAB_NO_RANK;
}

static inline void look(struct bpe *b, const struct vocab *v, size_t at, int32_t left, int32_t right) {
    const struct pair_slot *s = vocab_find_pair(v, left, right);
    b->ranks[at] = s ? s->rank : VOCAB_NO_RANK;
    b->results[at] = s ? s->id : -1;
}

static int64_t run_scan(struct bpe *b, const struct vocab *v, size_t n) {
    int32_t *ids = b->ids, *ranks = b->ranks, *results = b->results;
    for (;;) {
        size_t at = 0;
        int32_t best = VOCAB_NO_RANK;
        for (size_t i = 0; i + 1 < n; i++)
            if (ranks[i] < best) best = ranks[i], at = i;
        if (best == VOCAB_NO_RANK) return (int64_t)n;
        ids[at] = results[at];
        size_t tail = n - at - 2; /* pieces behind the pair */
        n--;
        memmove(ids + at + 1, ids + at + 2, tail * sizeof *ids);
        if (tail) {
            memmove(ranks + at + 1, ranks + at + 2, tail * sizeof *ranks);
            memmove(results + at + 1, results + at + 2, tail * sizeof *results);
            look(b, v, at, ids[at], ids[at + 1]);
        } else {
            ranks[at] = VOCAB_NO_RANK;
        }
        if (at) look(b, v, at - 1, ids[at - 1], ids[at]);
    }
}

static inline int before(struct bpe_heap_item a, struct bpe_heap_item b) {
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void push(struct bpe_heap_item *heap, size_t *n, int32_t rank, int32_t at) {
    size_t i = (*n)++;
    struct bpe_heap_item item = {rank, at};
    for (; i && before(item, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = item;
}

static struct bpe_heap_item pop(struct bpe_heap_item *heap, size_t *n) {
    struct bpe_heap_item top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *n) break;
        if (child + 1 < *n && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* Long pieces: a linked list, and a heap whose stale items are known by a rank that is no longer their place's. Each byte
 * pushes at most one item and each merge two, so 3 * n items are enough. */
static int64_t run_heap(struct bpe *b, const struct vocab *v, size_t n) {
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        b->next[i] = (int32_t)i + 1, b->prev[i] = (int32_t)i - 1;
        if (b->ranks[i] != VOCAB_NO_RANK) push(b->heap, &n_heap, b->ranks[i], (int32_t)i);
    }
    while (n_heap) {
        struct bpe_heap_item item = pop(b->heap, &n_heap);
        size_t at = (size_t)item.at;
        if (b->ranks[at] != item.rank) continue;
        size_t gone = (size_t)b->next[at], after = (size_t)b->next[gone];
        b->ids[at] = b->results[at];
        b->ranks[gone] = b->ranks[at] = VOCAB_NO_RANK;
        b->next[at] = (int32_t)after;
        if (after < n) {
            b->prev[after] = (int32_t)at;
            look(b, v, at, b->ids[at], b->ids[after]);
            if (b->ranks[at] != VOCAB_NO_RANK) push(b->heap, &n_heap, b->ranks[at], (int32_t)at);
        }
        if (b->prev[at] >= 0) {
            size_t left = (size_t)b->prev[at];
            look(b, v, left, b->ids[left], b->ids[at]);
            if (b->ranks[left] != VOCAB_NO_RANK) push(b->heap, &n_heap, b->ranks[left], (int32_t)left);
        }
    }
    size_t out = 0;
    for (size_t i = 0; i < n; i = (size_t)b->next[i]) b->ids[out++] = b->ids[i];
    return (int64_t)out;
}

int64_t bpe_run(struct bpe *b, const struct vocab *v, const uint8_t *p, size_t n) {
    if (reserve(b, n)) return -1;
    start(b, v, p, n);
    return n <= SCAN_BYTES ? run_scan(b, v, n) : run_heap(b, v, n);
}

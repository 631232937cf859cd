/* Byte-pair merging of one piece: of all adjacent pairs the one with the lowest rank merges first, the leftmost on ties. */
#ifndef TEXT_TOKENIZER_BPE_H
#define TEXT_TOKENIZER_BPE_H
#include "text/tokenizer_vocab.h"

/* Working memory of one thread at a time; start from {0}. */
struct bpe_heap_item { int32_t rank, at; };
struct bpe {
    int32_t *ids, *ranks, *results, *next, *prev; /* [room] each, one allocation at `ids` */
    struct bpe_heap_item *heap;                   /* [3 * room] */
    size_t room;
};
void bpe_drop(struct bpe *b);
/* Merges n > 0 bytes; the ids are b->ids[0 .. result). Negative: no memory. */
int64_t bpe_run(struct bpe *b, const struct vocab *v, const uint8_t *p, size_t n);
#endif

/* What an open tokenizer holds; for the tokenizer's own files. */
#ifndef TEXT_TOKENIZER_INSIDE_H
#define TEXT_TOKENIZER_INSIDE_H
#include <pthread.h>

#include "text/pretoken.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_nfc.h"
#include "text/tokenizer_vocab.h"

/* A piece of several tokens and what became of it, for the next time. */
enum { MEMO_BYTES = 27, MEMO_IDS = 8, MEMO_BITS = 13 };
struct memo { int32_t ids[MEMO_IDS]; uint8_t n_ids, n_bytes; uint8_t bytes[MEMO_BYTES + 3]; };

/* Working memory of one call to encode. Calls take one from the tokenizer's list, or make one, and put it back. */
struct encoder {
    struct encoder *next;
    struct pieces pieces;
    struct nfc nfc;
    struct bpe bpe;
    struct memo memos[1 << MEMO_BITS];
};

struct tokenizer {
    struct vocab vocab;
    struct added raw, normal; /* added tokens searched in the text as given, and after normalization */
    struct pretoken *pretoken;
    const uint8_t *chars;
    int normalizes, ignores_merges;
    pthread_mutex_t lock; /* of `idle` */
    struct encoder *idle;
};

/* Fills an empty tokenizer from a tokenizer.json. */
int tokenizer_read(struct tokenizer *t, const char *json, size_t n, const char *name, struct weft_error *e);
#endif

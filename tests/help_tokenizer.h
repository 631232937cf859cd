/* A small tokenizer.json made to order. */
#ifndef HELP_TOKENIZER_H
#define HELP_TOKENIZER_H
#include "base/buf.h"

/* Parts of it; NULL for what is usual. The vocabulary begins with the 256 bytes, whose ids are the bytes themselves. */
struct help_tokenizer {
    const char *vocab;      /* more entries: ", \"ab\": 256" */
    const char *merges;     /* "[\"a b\"]" */
    const char *added;      /* "[{...}]" */
    const char *normalizer; /* {"type": "NFC"} */
    const char *split;      /* a whole pre_tokenizer; usual: the Qwen3.5 pattern, then ByteLevel */
    const char *model;      /* more of model: ", \"ignore_merges\": true" */
};
void help_write_tokenizer(struct buf *out, const struct help_tokenizer *parts);
#endif

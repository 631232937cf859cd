/* Byte-level BPE with added tokens, as tokenizer.json describes it, both ways.
 *
 * Encoding: added tokens are searched in the text as given; each stretch between them is normalized (NFC), cut by the
 * split pattern and merged by rank (the place in the list of merges). No begin or end token is ever added.
 * Decoding: the bytes of all tokens are joined, then read as UTF-8 (decode_stream.h says what becomes of bad bytes).
 *
 * An open tokenizer may be used by any number of threads at once; tokenizer_close by the last of them. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

struct tokenizer;

/* Which added tokens of the text become their ids. PLAIN is what untrusted text should have: tokens marked special stay text,
 * the others (<think>, <tool_call>, ...) are still found. */
enum tokenizer_added { TOKENIZER_ADDED_ALL, TOKENIZER_ADDED_PLAIN, TOKENIZER_ADDED_NONE };

/* A growing list of ids; start from {0}. */
struct token_list { int32_t *ids; size_t n, room; };
int token_list_add(struct token_list *list, int32_t id); /* 0, or WEFT_ERROR_MEMORY */
int token_list_reserve(struct token_list *list, size_t more);
void token_list_drop(struct token_list *list);

/* From a tokenizer.json, or its bytes with the name that errors shall give. */
int tokenizer_open(struct tokenizer **out, const char *path, struct weft_error *e);
int tokenizer_open_bytes(struct tokenizer **out, const char *json, size_t n_bytes, const char *name, struct weft_error *e);
void tokenizer_close(struct tokenizer *t);

/* Appends the ids of n_bytes of UTF-8. After an error `out` holds what it held before. Text that is not UTF-8 is an error. */
int tokenizer_encode(struct tokenizer *t, const char *text, size_t n_bytes, enum tokenizer_added added, struct token_list *out,
                     struct weft_error *e);
/* Appends the text of n ids, always well-formed UTF-8; an id outside the vocabulary adds nothing. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, int skip_special, struct buf *out,
                     struct weft_error *e);

/* The bytes a token stands for (not always whole characters), NULL and 0 for an id that has none. Lives as long as t. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n);
/* The id of an added token with this content, else of the vocabulary entry with these bytes, else -1. */
int32_t tokenizer_find(const struct tokenizer *t, const char *content, size_t n);
int32_t tokenizer_size(const struct tokenizer *t); /* highest id + 1 */
int tokenizer_is_special(const struct tokenizer *t, int32_t id);
int tokenizer_is_added(const struct tokenizer *t, int32_t id);
#endif

/* Added tokens: a trie of their contents, searched leftmost and longest. */
#ifndef TEXT_TOKENIZER_ADDED_H
#define TEXT_TOKENIZER_ADDED_H
#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

/* LEFT and RIGHT: takes the space beside it; WORD: only as a whole word. */
enum { ADDED_SPECIAL = 1, ADDED_LEFT = 2, ADDED_RIGHT = 4, ADDED_WORD = 8 };
struct added_token { int32_t id; unsigned flags; };
struct added_node { int32_t child, sibling, token; uint8_t byte; }; /* indices, or -1 */
struct added {
    struct added_node *nodes;
    struct added_token *tokens;
    int32_t n_nodes, room_nodes, n_tokens, room_tokens;
    int32_t root[256]; /* node of a first byte, or -1 */
    int first_byte;    /* when all contents begin with the same byte: that byte; -1: nothing to find; -2: several */
};
void added_init(struct added *a);
void added_drop(struct added *a);
int added_insert(struct added *a, const uint8_t *content, size_t n, struct added_token token); /* 0 or WEFT_ERROR_MEMORY */
int32_t added_find(const struct added *a, const uint8_t *content, size_t n); /* the id with this content, or -1 */

/* The next added token at or after `from`: what it covers, space it takes with it included, is [begin, end). */
struct added_match { int32_t id; size_t begin, end; };
int added_next(const struct added *a, const uint8_t *table, enum tokenizer_added mode, const uint8_t *p, size_t n, size_t from,
               struct added_match *m);
#endif

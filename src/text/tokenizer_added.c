#include "text/tokenizer_added.h"

#include <string.h>

#include "base/mem.h"
#include "text/decode_utf8.h"
#include "text/pretoken_chars.h"

void added_init(struct added *a) {
    *a = (struct added){.first_byte = -1};
    for (int b = 0; b < 256; b++) a->root[b] = -1;
}

void added_drop(struct added *a) {
    mem_free(a->nodes), mem_free(a->tokens);
    added_init(a);
}

static int32_t new_node(struct added *a, uint8_t byte) {
    if (a->n_nodes == a->room_nodes) {
        if (a->room_nodes > INT32_MAX / 4) return -1;
        int32_t room = a->room_nodes ? a->room_nodes * 2 : 256;
        struct added_node *nodes = mem_resize(a->nodes, (size_t)room * sizeof *nodes);
        if (!nodes) return -1;
        a->nodes = nodes, a->room_nodes = room;
    }
    a->nodes[a->n_nodes] = (struct added_node){-1, -1, -1, byte};
    return a->n_nodes++;
}

static int32_t child_of(const struct added *a, int32_t node, uint8_t byte) {
    int32_t at = a->nodes[node].child;
    while (at >= 0 && a->nodes[at].byte != byte) at = a->nodes[at].sibling;
    return at;
}

int added_insert(struct added *a, const uint8_t *content, size_t n, struct added_token token) {
    CHECK(n > 0);
    if (a->n_tokens == a->room_tokens) {
        int32_t room = a->room_tokens ? a->room_tokens * 2 : 64;
        struct added_token *tokens = mem_resize(a->tokens, (size_t)room * sizeof *tokens);
        if (!tokens) return WEFT_ERROR_MEMORY;
        a->tokens = tokens, a->room_tokens = room;
    }
    int32_t at = a->root[content[0]];
    if (at < 0 && (a->root[content[0]] = at = new_node(a, content[0])) < 0) return WEFT_ERROR_MEMORY;
    for (size_t i = 1; i < n; i++) {
        int32_t child = child_of(a, at, content[i]);
        if (child < 0) {
            child = new_node(a, content[i]);
            if (child < 0) return WEFT_ERROR_MEMORY;
            a->nodes[child].sibling = a->nodes[at].child, a->nodes[at].child = child;
        }
        at = child;
    }
    a->nodes[at].token = a->n_tokens;
    a->tokens[a->n_tokens++] = token;
    a->first_byte = a->first_byte == -1 || a->first_byte == content[0] ? content[0] : -2;
    return 0;
}

/* Number of the token with the longest content at p, its length in *length; -1: none. */
static int32_t longest(const struct added *a, const uint8_t *p, size_t n, size_t *length) {
    int32_t found = -1, at = a->root[p[0]];
    for (size_t i = 0; at >= 0;) {
        i++;
        if (a->nodes[at].token >= 0) found = a->nodes[at].token, *length = i;
        at = i < n ? child_of(a, at, p[i]) : -1;
    }
    return found;
}

int32_t added_find(const struct added *a, const uint8_t *content, size_t n) {
    size_t length = 0;
    int32_t token = n ? longest(a, content, n, &length) : -1;
    return token >= 0 && length == n ? a->tokens[token].id : -1;
}

/* Class of the character that ends before `end`. */
static unsigned class_before(const uint8_t *table, const uint8_t *p, size_t end, unsigned *length) {
    size_t at = end - 1;
    while (at > 0 && (p[at] & 0xC0) == 0x80) at--;
    return chars_class(table, utf8_get(p + at, length));
}

static int is_whole_word(const uint8_t *table, const uint8_t *p, size_t n, size_t begin, size_t end) {
    unsigned length;
    if (begin > 0 && (class_before(table, p, begin, &length) & CHAR_WORD)) return 0;
    return end == n || !(chars_class(table, utf8_get(p + end, &length)) & CHAR_WORD);
}

/* Where a first byte may stand, or n. */
static size_t next_first_byte(const struct added *a, const uint8_t *p, size_t n, size_t i) {
    if (i >= n || a->first_byte == -1) return n;
    if (a->first_byte >= 0) {
        const uint8_t *hit = memchr(p + i, a->first_byte, n - i);
        return hit ? (size_t)(hit - p) : n;
    }
    while (i < n && a->root[p[i]] < 0) i++;
    return i;
}

int added_next(const struct added *a, const uint8_t *table, enum tokenizer_added mode, const uint8_t *p, size_t n, size_t from,
               struct added_match *m) {
    size_t i = from;
    while ((i = next_first_byte(a, p, n, i)) < n) {
        size_t length = 0;
        int32_t number = longest(a, p + i, n - i, &length);
        if (number < 0) {
            i++;
            continue;
        }
        const struct added_token *t = a->tokens + number;
        size_t begin = i, end = i + length;
        i = end; /* a match that does not count still hides what overlaps it */
        if (mode == TOKENIZER_ADDED_PLAIN && (t->flags & ADDED_SPECIAL)) continue;
        if ((t->flags & ADDED_WORD) && !is_whole_word(table, p, n, begin, end)) continue;
        unsigned space;
        if (t->flags & ADDED_LEFT)
            while (begin > from && (class_before(table, p, begin, &space) & CHAR_SPACE)) begin -= space;
        if (t->flags & ADDED_RIGHT)
            while (end < n && (chars_class(table, utf8_get(p + end, &space)) & CHAR_SPACE)) end += space;
        *m = (struct added_match){t->id, begin, end};
        return 1;
    }
    return 0;
}

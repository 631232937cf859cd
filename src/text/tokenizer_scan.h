/* A pull reader for the two large parts of tokenizer.json, model.vocab and model.merges, half a million strings that a tree
 * of objects would take seconds for. Everything else in the file goes to the ordinary JSON parser. */
#ifndef TEXT_TOKENIZER_SCAN_H
#define TEXT_TOKENIZER_SCAN_H
#include <stddef.h>
#include <stdint.h>

struct scan { const char *p, *end; };
struct scan_range { const char *begin, *end; }; /* NULL: not there */

/* Where the values of model.vocab and model.merges stand in the text; -1 when the text is not what it should be (the JSON
 * parser, given the text, then says why), -2 when a key stands twice. */
int scan_find_parts(const char *text, size_t n, struct scan_range *vocab, struct scan_range *merges);

int scan_next_char(struct scan *s);         /* the next character that is no white space, not taken; -1 at the end */
int scan_take(struct scan *s, char c);      /* takes c when it is next; 1 if so */
/* A string, unescaped into `out`, which has room for the rest of the text; its length, or -1. UTF-8 is not checked. */
int64_t scan_string(struct scan *s, uint8_t *out);
int scan_int(struct scan *s, int64_t *out); /* an integer of at most 18 digits; 1 if there was one */
#endif

/* Cuts text into the pieces that BPE works on, by the regular expressions of tokenizer.json. Any pattern runs through PCRE2;
 * the published Qwen patterns, known by their text, have a hand-written matcher that gives the same pieces. */
#ifndef TEXT_PRETOKEN_H
#define TEXT_PRETOKEN_H
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define PRETOKEN_QWEN35 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PRETOKEN_QWEN2 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PRETOKEN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

enum { PRETOKEN_PATTERNS_MAX = 8 };
enum pretoken_path { PRETOKEN_FASTEST, PRETOKEN_REGEX /* PCRE2 even for a pattern with a matcher of its own */ };

struct pretoken;
/* No pattern: the whole text is one piece. Several: each cuts the pieces of the one before. `name` is said in errors. */
int pretoken_new(struct pretoken **out, const char *const *patterns, int n, enum pretoken_path path, const char *name,
                 struct weft_error *e);
void pretoken_free(struct pretoken *p);

/* Pieces of one text and the memory for them, of one thread at a time; start from {0}. Piece i ends at ends[i]. */
struct pieces { uint32_t *ends; size_t n, room; uint32_t *other; size_t room_other; void *match, *limits; };
void pieces_drop(struct pieces *s);
/* `text` is well-formed UTF-8 of less than 2 GiB. What no match covers is a piece too. */
int pretoken_split(const struct pretoken *p, struct pieces *s, const uint8_t *text, size_t n, struct weft_error *e);
#endif

#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretoken.h"

#include <pcre2.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "text/pretoken_chars.h"
#include "text/pretoken_qwen.h"

/* A published pattern has a few hundred bytes, and its matches take a few steps for each byte of the text at most (a long run
 * of spaces is walked there and back). What takes more would take for ever. */
enum { PATTERN_BYTES_MAX = 8192, MATCH_STEPS = 10000, MATCH_STEPS_PER_BYTE = 16, MATCH_KIB_MAX = 65536 };

struct pretoken {
    const uint8_t *table;
    unsigned word; /* what words are made of, for the hand-written matcher; 0: the patterns */
    pcre2_code *codes[PRETOKEN_PATTERNS_MAX];
    int n_codes;
    pcre2_general_context *memory;
};

static void *get_memory(size_t n, void *arg) {
    (void)arg;
    return mem_alloc(n);
}

static void free_memory(void *p, void *arg) {
    (void)arg;
    mem_free(p);
}

/* PCRE2's \s takes U+180E, which is no white space to Unicode nor to the published tokenizers. */
static void write_pattern(struct buf *out, const char *pattern) {
    for (const char *c = pattern; *c; c++) {
        if (*c != '\\' || !c[1]) {
            buf_add_char(out, *c);
            continue;
        }
        c++;
        if (*c == 's') buf_add_text(out, "\\p{White_Space}");
        else if (*c == 'S') buf_add_text(out, "\\P{White_Space}");
        else buf_add_char(out, '\\'), buf_add_char(out, *c);
    }
}

static int compile(struct pretoken *p, const char *pattern, const char *name, struct weft_error *e) {
    if (strlen(pattern) > PATTERN_BYTES_MAX)
        return error_set(e, WEFT_ERROR_INPUT, "%s: a split pattern is longer than %d bytes", name, PATTERN_BYTES_MAX);
    struct buf text;
    buf_init(&text);
    write_pattern(&text, pattern);
    pcre2_compile_context *c = pcre2_compile_context_create(p->memory);
    int why = PCRE2_ERROR_HEAP_FAILED;
    size_t at = 0;
    pcre2_code *code = NULL;
    if (c && !text.failed)
        code = pcre2_compile((PCRE2_SPTR)text.data, text.n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &why, &at, c);
    pcre2_compile_context_free(c);
    buf_drop(&text);
    if (!code && (why == PCRE2_ERROR_HEAP_FAILED || why == 121 /* heap, from the compiler */))
        return error_memory(e, "a split pattern");
    if (!code) {
        char sentence[120];
        pcre2_get_error_message(why, (PCRE2_UCHAR *)sentence, sizeof sentence);
        return error_set(e, WEFT_ERROR_INPUT, "%s: split pattern \"%.100s\": %s", name, pattern, sentence);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it pcre2_match interprets */
    p->codes[p->n_codes++] = code;
    return 0;
}

int pretoken_new(struct pretoken **out, const char *const *patterns, int n, enum pretoken_path path, const char *name,
                 struct weft_error *e) {
    *out = NULL;
    if (n > PRETOKEN_PATTERNS_MAX)
        return error_set(e, WEFT_ERROR_SUPPORT, "%s: more than %d split patterns", name, PRETOKEN_PATTERNS_MAX);
    struct pretoken *p = mem_new(1, sizeof *p);
    if (!p) return error_memory(e, "the split patterns");
    p->table = chars_table();
    if (n == 1 && path == PRETOKEN_FASTEST) {
        if (!strcmp(patterns[0], PRETOKEN_QWEN35)) p->word = CHAR_LETTER | CHAR_MARK;
        if (!strcmp(patterns[0], PRETOKEN_QWEN2)) p->word = CHAR_LETTER;
    }
    int code = 0;
    if (!p->word) {
        p->memory = pcre2_general_context_create(get_memory, free_memory, NULL);
        if (!p->memory) code = error_memory(e, "the split patterns");
        for (int i = 0; i < n && !code; i++) code = compile(p, patterns[i], name, e);
    }
    if (code) return pretoken_free(p), code;
    *out = p;
    return 0;
}

void pretoken_free(struct pretoken *p) {
    if (!p) return;
    for (int i = 0; i < p->n_codes; i++) pcre2_code_free(p->codes[i]);
    pcre2_general_context_free(p->memory);
    mem_free(p);
}

void pieces_drop(struct pieces *s) {
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->limits);
    mem_free(s->ends), mem_free(s->other);
    *s = (struct pieces){0};
}

static int grow(struct pieces *s) {
    size_t room = s->room ? s->room * 2 : 1024;
    uint32_t *ends = mem_resize(s->ends, room * sizeof *ends);
    if (!ends) return -1;
    s->ends = ends, s->room = room;
    return 0;
}

static inline int add_end(struct pieces *s, size_t end) {
    if (s->n == s->room && grow(s)) return -1;
    s->ends[s->n++] = (uint32_t)end;
    return 0;
}

/* Cuts [begin, end) by one pattern, as if it were a text of its own: assertions see its ends and nothing beyond. */
static int cut(const pcre2_code *code, struct pieces *s, const uint8_t *text, size_t begin, size_t end, struct weft_error *e) {
    const uint8_t *base = text + begin;
    size_t n = end - begin, done = 0, at = 0;
    while (at < n) {
        int found = pcre2_match(code, base, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, s->match, s->limits);
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found == PCRE2_ERROR_NOMEMORY) return error_memory(e, "a split pattern");
        if (found < 0) {
            char sentence[120];
            pcre2_get_error_message(found, (PCRE2_UCHAR *)sentence, sizeof sentence);
            return error_set(e, WEFT_ERROR_INPUT, "the split pattern fails on this text: %s", sentence);
        }
        const size_t *where = pcre2_get_ovector_pointer(s->match);
        if (where[0] < done || where[1] <= where[0]) /* \K and the like */
            return error_set(e, WEFT_ERROR_SUPPORT, "the split pattern's matches overlap");
        if ((where[0] > done && add_end(s, begin + where[0])) || add_end(s, begin + where[1]))
            return error_memory(e, "the pieces of a text");
        done = at = where[1];
    }
    return done < n && add_end(s, end) ? error_memory(e, "the pieces of a text") : 0;
}

static int split_by_patterns(const struct pretoken *p, struct pieces *s, const uint8_t *text, size_t n, struct weft_error *e) {
    if (!s->match) s->match = pcre2_match_data_create(1, p->memory);
    if (!s->limits) s->limits = pcre2_match_context_create(p->memory);
    if (!s->match || !s->limits || add_end(s, n)) return error_memory(e, "the pieces of a text");
    uint64_t steps = MATCH_STEPS + (uint64_t)n * MATCH_STEPS_PER_BYTE;
    pcre2_set_match_limit(s->limits, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    pcre2_set_heap_limit(s->limits, MATCH_KIB_MAX);
    for (int k = 0; k < p->n_codes; k++) {
        uint32_t *old = s->ends;
        size_t n_old = s->n, room = s->room;
        s->ends = s->other, s->room = s->room_other, s->n = 0;
        s->other = old, s->room_other = room;
        for (size_t i = 0; i < n_old; i++) {
            int code = cut(p->codes[k], s, text, i ? old[i - 1] : 0, old[i], e);
            if (code) return code;
        }
    }
    return 0;
}

int pretoken_split(const struct pretoken *p, struct pieces *s, const uint8_t *text, size_t n, struct weft_error *e) {
    CHECK(n < (size_t)1 << 31);
    s->n = 0;
    if (n == 0) return 0;
    if (!p->word) return split_by_patterns(p, s, text, n, e);
    for (size_t at = 0; at < n;) {
        at = pretoken_qwen_next(p->table, p->word, text, n, at);
        if (add_end(s, at)) return error_memory(e, "the pieces of a text");
    }
    return 0;
}

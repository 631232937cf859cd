#include "text/tokenizer_nfc.h"

#include <utf8proc.h>

#include "base/error.h"
#include "base/mem.h"
#include "text/decode_utf8.h"
#include "text/pretoken_chars.h"

void nfc_drop(struct nfc *n) {
    buf_drop(&n->text);
    mem_free(n->chars);
    *n = (struct nfc){0};
}

/* Is there a character that NFC may change? */
static int any_joins(const uint8_t *table, const uint8_t *p, size_t n) {
    unsigned seen = 0, length;
    for (size_t i = 0; i < n; i += length) {
        if (p[i] < 0x80) {
            size_t skip = utf8_skip_ascii(p + i, n - i);
            length = skip ? (unsigned)skip : 1;
        } else {
            seen |= chars_class(table, utf8_get(p + i, &length));
        }
    }
    return (seen & CHAR_JOINS) != 0;
}

static int combining_class(int32_t c) { return utf8proc_get_property(c)->combining_class; }

/* Puts marks between two starters into canonical order, keeping that of equal classes. A sort with a bound: utf8proc's own
 * is quadratic, and a text of nothing but marks must not hang. */
static void sort_marks(struct nfc *w, int32_t *c, size_t n) {
    int sorted = 1;
    for (size_t i = 0; i + 1 < n && sorted; i++) sorted = combining_class(c[i]) <= combining_class(c[i + 1]);
    if (sorted) return;
    size_t count[256] = {0}, at = 0;
    for (size_t i = 0; i < n; i++) count[combining_class(c[i])]++;
    for (int k = 0; k < 256; k++) {
        size_t here = count[k];
        count[k] = at, at += here;
    }
    for (size_t i = 0; i < n; i++) w->sorted[count[combining_class(c[i])]++] = c[i];
    memcpy(c, w->sorted, n * sizeof *c);
}

static int reserve(struct nfc *w, size_t n) {
    if (n <= w->room) return 0;
    size_t room = n + n / 2;
    int32_t *chars = mem_alloc(2 * room * sizeof *chars);
    if (!chars) return -1;
    mem_free(w->chars);
    w->chars = chars, w->sorted = chars + room, w->room = room;
    return 0;
}

/* Appends the normal form of one run: a starter and what may join it. */
static int add_run(struct nfc *w, const uint8_t *p, size_t n_bytes) {
    /* No character has more than 4 parts, and none of one byte has several. */
    if (reserve(w, 2 * n_bytes + 64)) return -1;
    size_t n = 0;
    for (size_t i = 0; i < n_bytes;) {
        unsigned length;
        int32_t c = (int32_t)utf8_get(p + i, &length);
        i += length;
        int last_class = 0;
        utf8proc_ssize_t room = (utf8proc_ssize_t)(w->room - n);
        utf8proc_ssize_t parts = utf8proc_decompose_char(c, w->chars + n, room, UTF8PROC_STABLE | UTF8PROC_COMPOSE, &last_class);
        CHECK(parts >= 0 && parts <= room);
        n += (size_t)parts;
    }
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && combining_class(w->chars[end]); end++) {}
        if (end > i) sort_marks(w, w->chars + i, end - i);
        else end++;
    }
    utf8proc_ssize_t left = utf8proc_normalize_utf32(w->chars, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < left; i++) {
        uint8_t bytes[4];
        buf_add(&w->text, bytes, utf8_put(bytes, (uint32_t)w->chars[i]));
    }
    CHECK(left >= 0);
    return w->text.failed;
}

const uint8_t *nfc_run(struct nfc *w, const uint8_t *table, const uint8_t *p, size_t n_bytes, size_t *n_out) {
    if (!any_joins(table, p, n_bytes)) return *n_out = n_bytes, p;
    buf_clear(&w->text);
    size_t done = 0, starter = 0; /* bytes before `done` are out; the last character that joins nothing begins at `starter` */
    for (size_t i = 0; i < n_bytes;) {
        unsigned length;
        unsigned class = chars_class(table, utf8_get(p + i, &length));
        if (!(class & CHAR_JOINS)) {
            starter = i, i += length;
            continue;
        }
        size_t end = i + length;
        while (end < n_bytes && (chars_class(table, utf8_get(p + end, &length)) & CHAR_JOINS)) end += length;
        buf_add(&w->text, p + done, starter - done);
        if (add_run(w, p + starter, end - starter)) return NULL;
        done = starter = i = end;
    }
    buf_add(&w->text, p + done, n_bytes - done);
    if (w->text.failed) return NULL;
    return *n_out = w->text.n, (const uint8_t *)w->text.data;
}

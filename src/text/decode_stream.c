#include "text/decode_stream.h"

#include "text/decode_utf8.h"

static const char replacement[] = "\xEF\xBF\xBD";

size_t utf8_good_bytes(const uint8_t *p, size_t n) {
    size_t i = 0;
    while (i < n) {
        if (p[i] < 0x80) {
            size_t skip = utf8_skip_ascii(p + i, n - i);
            i += skip ? skip : 1;
            continue;
        }
        int step = utf8_step(p + i, n - i);
        if (step <= 0) break;
        i += (size_t)step;
    }
    return i;
}

/* Bytes that complete, or break, what is held; returns how many of them it took. */
static size_t finish_held(struct decode_stream *s, const uint8_t *p, size_t n, struct buf *out) {
    size_t used = 0;
    while (s->n_held) {
        uint8_t all[4];
        size_t n_all = (size_t)s->n_held;
        memcpy(all, s->held, n_all);
        if (used == n) return used;
        all[n_all++] = p[used];
        int step = utf8_step(all, n_all);
        if (step < 0) { /* only the new byte can be wrong: it is read again by the caller */
            buf_add(out, replacement, 3);
            s->n_held = 0;
            return used;
        }
        used++;
        if (step == 0) s->held[s->n_held++] = p[used - 1];
        else buf_add(out, all, n_all), s->n_held = 0;
    }
    return used;
}

void decode_stream_add(struct decode_stream *s, const char *bytes, size_t n, struct buf *out) {
    const uint8_t *p = (const uint8_t *)bytes;
    size_t i = finish_held(s, p, n, out);
    while (i < n) {
        size_t good = utf8_good_bytes(p + i, n - i);
        buf_add(out, p + i, good);
        i += good;
        if (i == n) return;
        int step = utf8_step(p + i, n - i);
        if (step == 0) {
            s->n_held = (int)(n - i);
            memcpy(s->held, p + i, n - i);
            return;
        }
        buf_add(out, replacement, 3);
        i += (size_t)-step;
    }
}

void decode_stream_add_token(struct decode_stream *s, const struct tokenizer *t, int32_t id, int skip_special, struct buf *out) {
    size_t n;
    const char *bytes = tokenizer_bytes(t, id, &n);
    if (bytes && !(skip_special && tokenizer_is_special(t, id))) decode_stream_add(s, bytes, n, out);
}

void decode_stream_end(struct decode_stream *s, struct buf *out) {
    if (s->n_held) buf_add(out, replacement, 3);
    s->n_held = 0;
}

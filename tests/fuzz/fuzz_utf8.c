/* Any bytes through the streaming decoder, cut anywhere: what comes out is what comes out at once, whole characters only, and
 * normalization and the split patterns take it. The first byte says how the rest is cut. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "text/decode_stream.h"
#include "text/decode_utf8.h"
#include "text/pretoken.h"
#include "text/pretoken_chars.h"
#include "text/tokenizer_nfc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must_split(const struct buf *text) {
    static const char *const patterns[] = {PRETOKEN_QWEN35};
    static struct pretoken *p;
    static struct pieces pieces;
    static struct nfc nfc;
    struct weft_error e = {0};
    if (!p) CHECK(pretoken_new(&p, patterns, 1, PRETOKEN_FASTEST, "fuzz", &e) == 0);
    size_t n, again;
    const uint8_t *normal = nfc_run(&nfc, chars_table(), (const uint8_t *)text->data, text->n, &n);
    CHECK(normal && utf8_good_bytes(normal, n) == n);
    CHECK(pretoken_split(p, &pieces, normal, n, &e) == 0);
    uint32_t end = 0;
    for (size_t i = 0; i < pieces.n; i++) {
        CHECK(pieces.ends[i] > end && utf8_good_bytes(normal + end, pieces.ends[i] - end) == pieces.ends[i] - end);
        end = pieces.ends[i];
    }
    CHECK(end == n);
    static struct nfc second;
    const uint8_t *twice = nfc_run(&second, chars_table(), normal, n, &again);
    CHECK(again == n && memcmp(twice, normal, n) == 0); /* what is normal stays as it is */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 1) return 0;
    struct decode_stream s = {0};
    struct buf once = {0}, pieces = {0};
    uint32_t cuts = data[0] * 2654435761u | 1;
    data++, n--;
    decode_stream_add(&s, (const char *)data, n, &once);
    decode_stream_end(&s, &once);
    for (size_t at = 0, step; at < n; at += step) {
        cuts = cuts * 1664525 + 1013904223;
        step = cuts >> 30;
        if (step > n - at) step = n - at;
        decode_stream_add(&s, (const char *)data + at, step, &pieces);
        CHECK(pieces.n == 0 || utf8_good_bytes((const uint8_t *)pieces.data, pieces.n) == pieces.n);
    }
    decode_stream_end(&s, &pieces);
    CHECK(once.n == pieces.n && (once.n == 0 || memcmp(once.data, pieces.data, once.n) == 0));
    if (utf8_good_bytes(data, n) == n) CHECK(once.n == n);
    if (once.n) must_split(&once);
    buf_drop(&once), buf_drop(&pieces);
    return 0;
}

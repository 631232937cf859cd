/* Any bytes as a tokenizer.json: an error with a sentence, or a tokenizer that takes its own output back. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/decode_utf8.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void round_trip(struct tokenizer *t, const char *text, size_t n, enum tokenizer_added added) {
    struct weft_error e = {0};
    struct token_list ids = {0};
    struct buf back = {0};
    if (tokenizer_encode(t, text, n, added, &ids, &e)) {
        CHECK(e.code < 0 && e.message[0]); /* a pattern may give up on a text */
    } else {
        CHECK(tokenizer_decode(t, ids.ids, ids.n, 0, &back, &e) == 0);
        CHECK(utf8_good_bytes((const uint8_t *)back.data, back.n) == back.n);
        for (size_t i = 0; i < ids.n; i++) CHECK(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_size(t));
    }
    token_list_drop(&ids);
    buf_drop(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char text[] = "It's caf\xC3\xA9 e\xCC\x81 <a> <|im_end|>  12 \xE4\xBD\xA0\xE5\xA5\xBD\r\n\taaaa abab";
    struct weft_error e = {0};
    struct tokenizer *t;
    int code = tokenizer_open_bytes(&t, (const char *)data, n, "fuzz.json", &e);
    CHECK(code == e.code && (code == 0) == (t != NULL) && (code == 0 || e.message[0]));
    if (!t) return 0;
    for (int added = TOKENIZER_ADDED_ALL; added <= TOKENIZER_ADDED_NONE; added++) {
        round_trip(t, text, sizeof text - 1, (enum tokenizer_added)added);
        size_t good = utf8_good_bytes(data, n < 4096 ? n : 4096);
        round_trip(t, (const char *)data, good, (enum tokenizer_added)added);
    }
    tokenizer_close(t);
    return 0;
}

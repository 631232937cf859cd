/* Bytes of tokens to text, a piece at a time: only whole characters come out, and what comes out in pieces is what would
 * have come out at once. Bad UTF-8 becomes U+FFFD: one for each longest beginning of a good sequence, one for each other byte. */
#ifndef TEXT_DECODE_STREAM_H
#define TEXT_DECODE_STREAM_H
#include "base/buf.h"
#include "text/tokenizer.h"

struct decode_stream { uint8_t held[3]; int n_held; }; /* the beginning of a character; start from {0} */

void decode_stream_add(struct decode_stream *s, const char *bytes, size_t n, struct buf *out);
/* Adds nothing for an id without bytes, nor for a special token when they are skipped. */
void decode_stream_add_token(struct decode_stream *s, const struct tokenizer *t, int32_t id, int skip_special, struct buf *out);
/* What is held will get no rest: one U+FFFD for it. The stream is then as new. */
void decode_stream_end(struct decode_stream *s, struct buf *out);
#endif

#include "engine/reply.h"

#include "base/mem.h"
#include "text/decode_stream.h"

struct reply {
    struct reply_options o;
    struct decode_stream stream;
    struct buf text;
};

int reply_new(struct reply **out, const struct reply_options *o, struct weft_error *e) {
    struct reply *r = mem_new(1, sizeof *r);
    if (!r) return error_memory(e, "the answer");
    r->o = *o;
    *out = r;
    return 0;
}

void reply_free(struct reply *r) {
    if (!r) return;
    buf_drop(&r->text);
    mem_free(r);
}

int reply_add(struct reply *r, int32_t token, int is_end, reply_fn *fn, void *arg) {
    if (!r->o.model->tokenizer || is_end) return REPLY_GOES_ON;
    buf_clear(&r->text);
    decode_stream_add_token(&r->stream, r->o.model->tokenizer, token, 0, &r->text);
    if (!r->text.n) return REPLY_GOES_ON;
    struct weft_event event = {.kind = WEFT_EVENT_TEXT, .text = r->text.data, .n_bytes = r->text.n};
    return fn(arg, &event) ? REPLY_CANCELLED : REPLY_GOES_ON;
}

int reply_end(struct reply *r, int by_length, reply_fn *fn, void *arg) {
    (void)r, (void)by_length, (void)fn, (void)arg;
    return REPLY_GOES_ON;
}

int reply_in_reasoning(const struct reply *r) { (void)r; return 0; }
int reply_tool_calls(const struct reply *r) { (void)r; return 0; }
int reply_stop_string(const struct reply *r) { (void)r; return -1; }

#include "engine/reply.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/decode_stream.h"
#include "text/output.h"
#include "text/template.h"

struct reply {
    const struct weft_model *model;
    int raw, stopped, n_calls;
    struct decode_stream stream;
    struct buf text;
    struct output *output;
    json_t *tools;
    reply_fn *fn; void *arg; /* of the call that runs */
};

/* The call as the event wants it. */
static int send_call(struct reply *r, const char *bytes, size_t n) {
    json_t *call;
    struct weft_error e;
    if (json_parse(&call, bytes, n, "tool call", &e)) return 0;
    const json_t *function = json_object_get(call, "function");
    char id[16];
    snprintf(id, sizeof id, "call_%d", r->n_calls++);
    struct weft_event event = {.kind = WEFT_EVENT_TOOL_CALL,
                               .id = id,
                               .name = json_string_value(json_object_get(function, "name")),
                               .arguments = json_string_value(json_object_get(function, "arguments"))};
    CHECK(event.name && event.arguments);
    int code = r->fn(r->arg, &event);
    json_decref(call);
    return code;
}

static int take_piece(void *arg, enum output_kind kind, const char *bytes, size_t n) {
    struct reply *r = arg;
    if (kind == OUTPUT_TOOL_CALL) return send_call(r, bytes, n);
    struct weft_event event = {.kind = kind == OUTPUT_TEXT ? WEFT_EVENT_TEXT : WEFT_EVENT_REASONING, .text = bytes, .n_bytes = n};
    return r->fn(r->arg, &event);
}

int reply_new(struct reply **out, const struct reply_options *o, struct weft_error *e) {
    struct reply *r = mem_new(1, sizeof *r);
    if (!r) return error_memory(e, "the answer");
    struct buf prompt;
    buf_init(&prompt);
    r->model = o->model, r->raw = o->raw;
    int code = 0;
    struct output_options options = {.plain = o->raw || !o->model->chat, .stops = o->stop, .n_stops = (size_t)o->n_stop,
                                     .on_event = take_piece, .arg = r};
    if (o->model->tokenizer && !options.plain)
        code = tokenizer_decode(o->model->tokenizer, o->prompt, (size_t)o->n_prompt, 0, &prompt, e);
    if (!code && o->tools) code = json_parse(&r->tools, o->tools, strlen(o->tools), "tools", e);
    options.prompt = prompt.data, options.n_prompt = prompt.n;
    options.tools = r->tools && json_is_array(r->tools) ? r->tools : NULL;
    if (o->model->chat) options.tool_family = template_tool_family(o->model->chat);
    if (!code) code = output_new(&r->output, &options, e);
    buf_drop(&prompt);
    if (code) reply_free(r);
    else *out = r;
    return code;
}

void reply_free(struct reply *r) {
    if (!r) return;
    output_free(r->output);
    json_decref(r->tools);
    buf_drop(&r->text);
    mem_free(r);
}

static int said(struct reply *r, int code, struct weft_error *e) {
    if (code == WEFT_ERROR_CANCELLED) return REPLY_CANCELLED;
    if (code < 0) return error_prefix(e, "the answer's text"), REPLY_FAILED;
    if (code == OUTPUT_STOPPED) r->stopped = 1;
    return r->stopped ? REPLY_STOPPED : REPLY_GOES_ON;
}

int reply_add(struct reply *r, int32_t token, int is_end, reply_fn *fn, void *arg, struct weft_error *e) {
    if (!r->model->tokenizer || is_end) return REPLY_GOES_ON;
    r->fn = fn, r->arg = arg;
    buf_clear(&r->text);
    decode_stream_add_token(&r->stream, r->model->tokenizer, token, !r->raw, &r->text);
    if (r->text.failed) return error_memory(e, "the answer's text"), REPLY_FAILED;
    return r->text.n ? said(r, output_feed(r->output, r->text.data, r->text.n, e), e) : REPLY_GOES_ON;
}

int reply_end(struct reply *r, int by_length, reply_fn *fn, void *arg, struct weft_error *e) {
    r->fn = fn, r->arg = arg;
    buf_clear(&r->text);
    decode_stream_end(&r->stream, &r->text);
    int code = r->text.n && by_length ? output_feed(r->output, r->text.data, r->text.n, e) : 0;
    return code < 0 ? said(r, code, e) : said(r, output_end(r->output, by_length, e), e);
}

int reply_in_reasoning(const struct reply *r) { return output_is_thinking(r->output); }
int reply_tool_calls(const struct reply *r) { return output_n_calls(r->output); }

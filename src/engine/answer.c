/* weft_generate: one request from submission to a whole answer. */
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/inside.h"

struct collected {
    const struct weft_request_options *o;
    struct buf text, reasoning;
    json_t *tool_calls;
    struct weft_answer *out;
    int done, failed;
};

static void add_call(struct collected *c, const struct weft_event *event) {
    json_t *call = json_pack("{s:s, s:s}", "name", event->name, "arguments", event->arguments);
    if (!c->tool_calls) c->tool_calls = json_array();
    if (!call || !c->tool_calls || json_array_append_new(c->tool_calls, call)) c->failed = 1;
}

static void take_result(struct collected *c, const struct weft_event *event) {
    struct weft_answer *a = c->out;
    size_t n = (size_t)event->result->n_tokens;
    a->result = *event->result;
    a->tokens = mem_new(n + 1, sizeof *a->tokens);
    if (!a->tokens) c->failed = 1;
    else if (n) memcpy(a->tokens, event->result->tokens, n * sizeof *a->tokens);
    a->result.tokens = a->tokens;
    c->done = 1;
}

static int collect(void *arg, const struct weft_event *event) {
    struct collected *c = arg;
    if (event->kind == WEFT_EVENT_TEXT) buf_add(&c->text, event->text, event->n_bytes);
    if (event->kind == WEFT_EVENT_REASONING) buf_add(&c->reasoning, event->text, event->n_bytes);
    if (event->kind == WEFT_EVENT_TOOL_CALL) add_call(c, event);
    if (event->kind == WEFT_EVENT_DONE) take_result(c, event);
    return c->o->on_event ? c->o->on_event(c->o->arg, event) : 0;
}

int weft_generate(struct weft_answer *out, struct weft_engine *engine, const struct weft_request_options *o,
                  struct weft_error *e) {
    struct collected c = {.o = o, .out = out};
    struct weft_request_options own = *o;
    own.on_event = collect, own.arg = &c;
    *out = (struct weft_answer){0};
    buf_init(&c.text), buf_init(&c.reasoning);
    buf_add_text(&c.text, ""), buf_add_text(&c.reasoning, "");
    /* a step that is refused would leave the request in the queue with our pointers */
    int code = engine->stepping || engine->open
                   ? error_set(e, WEFT_ERROR_INPUT, "weft_generate needs the engine for itself: a step is open")
                   : weft_submit(NULL, engine, &own, e);
    while (!code && !c.done) {
        int more = weft_engine_step(engine, e);
        if (more < 0) code = more;
    }
    out->text = buf_take(&c.text, NULL), out->reasoning = buf_take(&c.reasoning, NULL);
    if (c.tool_calls) out->tool_calls = json_dumps(c.tool_calls, JSON_COMPACT);
    if (!code && out->result.finish == WEFT_FINISH_ERROR)
        code = error_set(e, out->result.error.code, "%s", out->result.error.message);
    if (!code && (c.failed || !out->text || !out->reasoning || (c.tool_calls && !out->tool_calls)))
        code = error_memory(e, "the answer");
    json_decref(c.tool_calls);
    if (code) weft_answer_drop(out);
    return code;
}

void weft_answer_drop(struct weft_answer *a) {
    mem_free(a->text), mem_free(a->reasoning), mem_free(a->tool_calls), mem_free(a->tokens);
    *a = (struct weft_answer){0};
}

/* A request's answer on its way from tokens to events: whole characters, reasoning and tool calls told apart, stop texts. */
#ifndef ENGINE_REPLY_H
#define ENGINE_REPLY_H
#include "engine/engine.h"

struct reply;
struct reply_options {
    const struct weft_model *model;
    int raw;                             /* every token is text */
    const char *const *stop; int n_stop;
    const char *tools;                   /* JSON, for the types of arguments; or NULL */
    const int32_t *prompt; int n_prompt; /* tells whether the answer begins inside the thinking marks */
};
/* A model without tokenizer gives no text, only tokens. */
int reply_new(struct reply **out, const struct reply_options *o, struct weft_error *e);
void reply_free(struct reply *r);

/* Called for every piece. `event` has kind and text or tool call set. Not 0: stop, cancelled. */
typedef int reply_fn(void *arg, struct weft_event *event);
enum { REPLY_GOES_ON, REPLY_STOPPED, REPLY_CANCELLED, REPLY_FAILED };
/* `is_end`: an end token, which is no part of the text. REPLY_STOPPED: a stop text was met. REPLY_FAILED: e says why. */
int reply_add(struct reply *r, int32_t token, int is_end, reply_fn *fn, void *arg, struct weft_error *e);
/* Behind the last token: `by_length` gives out what was held back. */
int reply_end(struct reply *r, int by_length, reply_fn *fn, void *arg, struct weft_error *e);
int reply_in_reasoning(const struct reply *r);
int reply_tool_calls(const struct reply *r); /* how many were sent */
#endif

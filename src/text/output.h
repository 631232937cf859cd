/* What a model writes, taken apart while it is written: answer, reasoning and tool calls, up to a stop string.
 *
 * Invariants
 * 1. How the text is cut into pieces changes nothing but where events are cut.
 * 2. Text that could begin a marker or a stop string is held back until that is decided.
 * 3. Of several matches the one that starts first counts, and of those the shortest; a stop string before a marker. */
#ifndef TEXT_OUTPUT_H
#define TEXT_OUTPUT_H
#include <jansson.h>

#include "base/error.h"

enum output_kind {
    OUTPUT_TEXT,      /* bytes of the answer */
    OUTPUT_REASONING, /* bytes of what was thought */
    OUTPUT_TOOL_CALL, /* one whole call as JSON text: {"function": {"name", "arguments"}, "type": "function"} */
};
/* bytes end with a zero byte that n does not count. Not 0: the caller wants no more, and output_feed returns
 * WEFT_ERROR_CANCELLED. */
typedef int output_event(void *arg, enum output_kind kind, const char *bytes, size_t n);

struct output_options {
    const char *prompt;      /* tells whether the model is thinking when it begins; NULL: it is not */
    size_t n_prompt;
    const char *tool_family; /* as of template_tool_family; NULL or unknown: tool calls stay text */
    const json_t *tools;     /* borrowed until output_free; may be NULL */
    int plain;               /* 1: no markers, only stop strings (text without a template) */
    const char *const *stops;
    size_t n_stops;
    output_event *on_event;
    void *arg;
};

struct output;
int output_new(struct output **out, const struct output_options *options, struct weft_error *e);
void output_free(struct output *o);
/* 0; OUTPUT_STOPPED once a stop string was met, behind which nothing counts; negative on an error. */
enum { OUTPUT_STOPPED = 1 };
int output_feed(struct output *o, const char *bytes, size_t n, struct weft_error *e);
/* The end. `cut` 1: the length was reached, and what is held back is text; 0: the model or a stop string ended it, and what
 * is held back is dropped. A tool call that lacks its end mark is read if it is whole otherwise. */
int output_end(struct output *o, int cut, struct weft_error *e);

int output_is_thinking(const struct output *o);
int output_n_calls(const struct output *o); /* tool calls made so far */
#endif

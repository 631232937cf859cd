/* Chat templates: messages to the prompt that a model was trained on. docs/templates.md tells the rules. A template may be
 * rendered by any number of threads at once. */
#ifndef TEXT_TEMPLATE_H
#define TEXT_TEMPLATE_H
#include <jansson.h>
#include <time.h>

#include "base/buf.h"
#include "base/error.h"

struct template;

/* From a model's folder: chat_template.jinja, else "chat_template" of tokenizer_config.json (a text, or a list of named ones
 * of which "default" and, where tools are given, "tool_use" are used). The special tokens of tokenizer_config.json
 * (bos_token and so on) reach the template as variables. */
int template_open(struct template **out, const char *folder, struct weft_error *e);
/* From its text; `name` begins the sentences of errors. No special tokens. */
int template_new(struct template **out, const char *text, size_t n, const char *name, struct weft_error *e);
void template_close(struct template *t);

/* How the tool calls of a model with this template are written: "qwen3_coder", "json", or NULL if neither is recognised.
 * tokenizer_config.json's "tool_parser_type" wins over what the template shows. */
const char *template_tool_family(const struct template *t);
/* Whether the template asks for the time. */
int template_wants_time(const struct template *t);

struct template_input {
    /* Either these (borrowed; tools and kwargs may be NULL) ... */
    const json_t *messages, *tools, *kwargs;
    /* ... or one JSON text {"messages", "tools", "kwargs"}, in which numbers of any size survive. */
    const char *dialogue, *dialogue_name;
    size_t n_dialogue;

    /* Over what kwargs say; negative: as kwargs say. */
    int add_generation_prompt, thinking;
    int continue_final;    /* 1: the last message is left open, to be continued */
    int exact;             /* 1: the messages as they are; 0: the repairs of docs/templates.md */
    const struct tm *now;  /* for strftime_now; NULL: the local time */
    int now_us;
};
#define TEMPLATE_INPUT ((struct template_input){.add_generation_prompt = -1, .thinking = -1})

/* Appends the prompt to `out`. When the template itself refuses with raise_exception, e->message holds its text (cut, and
 * without control characters) and *raised, if asked for, the whole of it (mem_free); else *raised is NULL. */
int template_render(const struct template *t, const struct template_input *in, struct buf *out, char **raised,
                    struct weft_error *e);
#endif

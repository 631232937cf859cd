#define _POSIX_C_SOURCE 200809L /* localtime_r, clock_gettime */
#include "text/template.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/template_prepare.h"

enum { TEMPLATE_BYTES_MAX = 8 << 20, CONFIG_BYTES_MAX = 64 << 20 };

struct template {
    struct jinja *plain, *with_tools; /* with_tools NULL: the same for both */
    json_t *special;                  /* name to text, or NULL */
    char *name, *family;
};

static const struct jinja_limits limits = JINJA_PROMPT_LIMITS;

static int compile(struct jinja **out, const char *text, size_t n, const char *name, struct weft_error *e) {
    enum jinja_fault fault;
    *out = jinja_new(text, n, &fault, e);
    if (*out) return 0;
    return error_prefix(e, "%s", name);
}

/* The families that mlx.md and its peers tell apart, by what the template shows of them. */
static const char *family_of(const char *text, size_t n) {
    if (text_find(text, n, "<tool_call>\\n<function=", 23) || text_find(text, n, "<tool_call>\n<function=", 22))
        return "qwen3_coder";
    return text_find(text, n, "<tool_call>", 11) ? "json" : NULL;
}

static int set_family(struct template *t, const char *family, struct weft_error *e) {
    mem_free(t->family);
    t->family = family ? mem_copy_text(family, strlen(family)) : NULL;
    return family && !t->family ? error_memory(e, t->name) : 0;
}

static int start(struct template **out, const char *name, struct weft_error *e) {
    struct template *t = *out = mem_new(1, sizeof *t);
    if (!t || !(t->name = mem_copy_text(name, strlen(name)))) return error_memory(e, name);
    return 0;
}

static int take_text(struct template *t, const char *text, size_t n, struct weft_error *e) {
    int code = compile(&t->plain, text, n, t->name, e);
    return code ? code : set_family(t, family_of(text, n), e);
}

static int finish(struct template **out, int code) {
    if (code) template_close(*out), *out = NULL;
    return code;
}

int template_new(struct template **out, const char *text, size_t n, const char *name, struct weft_error *e) {
    int code = start(out, name, e);
    return finish(out, code ? code : take_text(*out, text, n, e));
}

void template_close(struct template *t) {
    if (!t) return;
    jinja_free(t->plain), jinja_free(t->with_tools);
    json_decref(t->special);
    mem_free(t->name), mem_free(t->family);
    mem_free(t);
}

const char *template_tool_family(const struct template *t) { return t->family; }

int template_wants_time(const struct template *t) {
    return jinja_mentions(t->plain, "strftime_now") || (t->with_tools && jinja_mentions(t->with_tools, "strftime_now"));
}

/* ---- from a folder ---- */

static int take_special(struct template *t, const json_t *config, struct weft_error *e) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    if (!(t->special = json_object())) return error_memory(e, t->name);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = json_object_get(config, names[i]);
        if (json_is_object(v)) v = json_object_get(v, "content"); /* an added token, written out */
        if (json_is_string(v) && json_object_set(t->special, names[i], v)) return error_memory(e, t->name);
    }
    return 0;
}

/* "chat_template" of tokenizer_config.json: a text, or a list of {"name", "template"}. */
static int take_config(struct template *t, const json_t *config, struct weft_error *e) {
    const json_t *given = json_object_get(config, "chat_template");
    if (json_is_string(given)) return take_text(t, json_string_value(given), json_string_length(given), e);
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *one = json_array_get(given, i), *text = json_object_get(one, "template");
        const char *name = json_string_value(json_object_get(one, "name"));
        if (!name || !json_is_string(text))
            return error_set(e, WEFT_ERROR_INPUT, "%s: \"chat_template\" has an entry without a name or a template", t->name);
        struct jinja **to = !strcmp(name, "default") ? &t->plain : !strcmp(name, "tool_use") ? &t->with_tools : NULL;
        if (!to || *to) continue;
        int code = compile(to, json_string_value(text), json_string_length(text), t->name, e);
        if (!code && (to == &t->with_tools || !t->family))
            code = set_family(t, family_of(json_string_value(text), json_string_length(text)), e);
        if (code) return code;
    }
    if (!t->plain) t->plain = t->with_tools, t->with_tools = NULL;
    return t->plain ? 0 : error_set(e, WEFT_ERROR_INPUT, "%s: no chat template", t->name);
}

static int take_folder(struct template *t, const char *config_path, const char *template_path, struct weft_error *e) {
    json_t *config = NULL;
    struct buf text;
    buf_init(&text);
    int code = 0, own = file_exists(template_path);
    if (file_exists(config_path)) code = json_read_file(&config, config_path, CONFIG_BYTES_MAX, e);
    if (!code && config) code = take_special(t, config, e);
    if (!code && own) code = file_read(&text, template_path, TEMPLATE_BYTES_MAX, e);
    if (!code) code = own ? take_text(t, text.data ? text.data : "", text.n, e) : take_config(t, config, e);
    const char *family = json_string_value(json_object_get(config, "tool_parser_type"));
    if (!code && family) code = set_family(t, family, e);
    buf_drop(&text);
    json_decref(config);
    return code;
}

int template_open(struct template **out, const char *folder, struct weft_error *e) {
    char *config = file_join(folder, "tokenizer_config.json"), *own = file_join(folder, "chat_template.jinja");
    int code = config && own ? start(out, file_exists(own) ? own : config, e) : (*out = NULL, error_memory(e, folder));
    if (!code) code = take_folder(*out, config, own, e);
    mem_free(config), mem_free(own);
    return finish(out, code);
}

/* ---- rendering ---- */

static void set_time(struct render *r, const struct template_input *in) {
    if (in->now) { r->now = *in->now, r->now_us = in->now_us; return; }
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return;
    localtime_r(&now.tv_sec, &r->now);
    r->now_us = (int)(now.tv_nsec / 1000);
}

static const char *find_last(const char *s, size_t n, const char *what, size_t m) {
    for (const char *p = n >= m ? s + n - m : NULL; p && p >= s; p--)
        if (!memcmp(p, what, m)) return p;
    return NULL;
}

static int is_trimmed_inside(const char *s, size_t n, struct value text) {
    const char *from = text.as.text->bytes, *end = from + text.as.text->n;
    size_t used;
    while (from < end && char_is_space(text_char(from, (size_t)(end - from), &used))) from += used;
    while (end > from) {
        const char *at = end;
        do at--;
        while (at > from && (*at & 0xc0) == 0x80);
        if (!char_is_space(text_char(at, (size_t)(end - at), &used))) break;
        end = at;
    }
    return text_find(s, n, from, (size_t)(end - from)) != NULL;
}

/* Cuts a prompt whose last message is to be continued at the mark. 0 if the template does not show that message. */
static int cut(const char *s, size_t *n, const struct template_work *w) {
    size_t whole = strlen(template_mark), bare = whole - 1, used;
    const char *at = find_last(s, *n, template_mark, bare);
    if (!at || !is_trimmed_inside(s, *n, w->text)) return 0;
    int trimmed = *n - (size_t)(at - s) < whole || at[bare] != ' ';
    *n = (size_t)(at - s);
    while (trimmed && *n) {
        size_t last = *n;
        do last--;
        while (last && (s[last] & 0xc0) == 0x80);
        if (!char_is_space(text_char(s + last, *n - last, &used))) break;
        *n = last;
    }
    return 1;
}

static int explain(const struct template *t, const struct render *r, char **raised, struct weft_error *e) {
    if (r->fault == FAULT_MEMORY) return error_memory(e, "the prompt");
    if (r->fault == FAULT_RAISED) {
        if (raised && !(*raised = mem_copy_text(r->message, strlen(r->message)))) return error_memory(e, "the prompt");
        return error_set(e, WEFT_ERROR_INPUT, "%s", r->message);
    }
    int code = r->fault == FAULT_SUPPORT ? WEFT_ERROR_SUPPORT : WEFT_ERROR_INPUT;
    if (!r->line) return error_set(e, code, "%s", r->message);
    return error_set(e, code, "%s, line %d: %s", t->name, r->line, r->message);
}

static int attempt(const struct template *t, const struct template_input *in, int repairs, struct buf *out, char **raised,
                   struct weft_error *e) {
    struct template_work w = {.in = in, .special = t->special, .with_tools = t->with_tools, .repairs = repairs};
    struct render r;
    struct value text;
    jinja_run_init(&r, &limits);
    set_time(&r, in);
    int code = 0;
    if (jinja_render(t->plain, &r, template_prepare, &w, &text)) code = explain(t, &r, raised, e);
    if (!code) {
        size_t n = text.as.text->n;
        const char *s = text.as.text->bytes;
        if (w.continued && !cut(s, &n, &w))
            code = error_set(e, WEFT_ERROR_INPUT, "continue_final_message: the template does not show the last message's text");
        else if (!text_is_valid(s, n))
            code = error_set(e, WEFT_ERROR_INPUT, "%s: the prompt holds half of a surrogate pair", t->name);
        else buf_add(out, s, n);
        if (!code && out->failed) code = error_memory(e, "the prompt");
    }
    jinja_run_drop(&r);
    return code;
}

int template_render(const struct template *t, const struct template_input *in, struct buf *out, char **raised,
                    struct weft_error *e) {
    if (raised) *raised = NULL;
    int code = attempt(t, in, in->exact ? 0 : REPAIR_DECODE, out, raised, e);
    /* What a template refuses may be what it was not written for: repairs are added one by one. The first refusal is the one
     * that is told of if none helps. */
    static const int more[] = {REPAIR_DECODE | REPAIR_CONTENT, REPAIR_DECODE | REPAIR_CONTENT | REPAIR_SYSTEM,
                               REPAIR_ENCODE | REPAIR_CONTENT, REPAIR_ENCODE | REPAIR_CONTENT | REPAIR_SYSTEM};
    for (size_t i = 0; code && code != WEFT_ERROR_MEMORY && !in->exact && i < sizeof more / sizeof *more; i++) {
        if (attempt(t, in, more[i], out, NULL, NULL)) continue;
        if (raised) mem_free(*raised), *raised = NULL;
        return 0;
    }
    return code;
}

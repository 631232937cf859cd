/* Conversations to prompts. What a message says never becomes a special token: the tokens that the template writes are found in
 * the rendered text, those that were in a message's strings are not, because a mark was put into them before rendering and is
 * taken out of the text between special tokens after it. */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "text/template.h"

/* U+FDD0, which is never a character. */
static const char mark[] = "\xef\xb7\x90";
enum { MARK_BYTES = sizeof mark - 1 };

/* The special token that begins at `text`, the longest if there are several; -1: none. */
static int32_t special_at(const struct weft_model *m, const char *text, size_t n, size_t *length) {
    int32_t found = -1;
    *length = 0;
    for (int i = 0; i < m->n_specials; i++) {
        const struct special *s = &m->specials[i];
        if (s->n_bytes <= n && s->n_bytes > *length && memcmp(text, s->text, s->n_bytes) == 0)
            found = s->id, *length = s->n_bytes;
    }
    return found;
}

static int holds_special(const struct weft_model *m, const char *text, size_t n) {
    size_t length;
    for (size_t i = 0; i < n; i++)
        if (special_at(m, text + i, n - i, &length) >= 0) return 1;
    return 0;
}

/* A mark behind the first character of every special token in the text. */
static void add_marked(const struct weft_model *m, const char *text, size_t n, struct buf *out) {
    for (size_t i = 0, length; i < n; i++) {
        buf_add_char(out, text[i]);
        if (special_at(m, text + i, n - i, &length) < 0) continue;
        while (i + 1 < n && ((unsigned char)text[i + 1] & 0xc0) == 0x80) buf_add_char(out, text[++i]);
        buf_add(out, mark, MARK_BYTES);
    }
}

/* A copy of v in which the strings are marked. NULL: no memory. */
static json_t *marked_copy(const struct weft_model *m, const json_t *v) {
    if (json_is_string(v)) {
        struct buf text;
        buf_init(&text);
        add_marked(m, json_string_value(v), json_string_length(v), &text);
        json_t *s = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.n);
        buf_drop(&text);
        return s;
    }
    if (!json_is_array(v) && !json_is_object(v)) return json_deep_copy(v);
    json_t *out = json_is_array(v) ? json_array() : json_object();
    if (json_is_array(v)) {
        for (size_t i = 0; out && i < json_array_size(v); i++)
            if (json_array_append_new(out, marked_copy(m, json_array_get(v, i)))) return json_decref(out), NULL;
        return out;
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value) /* the library's iterators take no const */
        if (!out || json_object_set_new(out, key, marked_copy(m, value))) return json_decref(out), NULL;
    return out;
}

static int any_special(const struct weft_model *m, const json_t *v) {
    if (json_is_string(v)) return holds_special(m, json_string_value(v), json_string_length(v));
    for (size_t i = 0; json_is_array(v) && i < json_array_size(v); i++)
        if (any_special(m, json_array_get(v, i))) return 1;
    const char *key;
    json_t *value;
    if (json_is_object(v)) {
        json_object_foreach((json_t *)v, key, value)
            if (any_special(m, value)) return 1;
    }
    return 0;
}

struct dialogue { json_t *messages, *tools, *kwargs; };

static void drop_dialogue(struct dialogue *d) { json_decref(d->messages), json_decref(d->tools), json_decref(d->kwargs); }

static int parse_part(json_t **out, const char *text, const char *name, int is_array, struct weft_error *e) {
    if (!text) return 0;
    int code = json_parse(out, text, strlen(text), name, e);
    if (code) return code;
    if (json_is_null(*out)) {
        *out = NULL;
        return 0;
    }
    if (is_array ? json_is_array(*out) : json_is_object(*out)) return 0;
    return error_set(e, WEFT_ERROR_INPUT, "%s: not %s", name, is_array ? "a list" : "an object");
}

static int parse_dialogue(struct dialogue *d, const struct weft_chat *chat, struct weft_error *e) {
    int code = parse_part(&d->messages, chat->messages, "messages", 1, e);
    if (!code) code = parse_part(&d->tools, chat->tools, "tools", 1, e);
    if (!code) code = parse_part(&d->kwargs, chat->template_args, "template arguments", 0, e);
    if (!code && !d->messages) code = error_set(e, WEFT_ERROR_INPUT, "messages: none are given");
    return code;
}

static int mark_dialogue(const struct weft_model *m, struct dialogue *d, struct weft_error *e) {
    struct dialogue marked = {marked_copy(m, d->messages), d->tools ? marked_copy(m, d->tools) : NULL, json_incref(d->kwargs)};
    int ok = marked.messages && (!d->tools || marked.tools);
    drop_dialogue(d);
    *d = marked;
    return ok ? 0 : error_memory(e, "messages");
}

/* The prompt's text. *marked: it holds marks (asked for by a pointer that is not NULL). */
static int render(struct weft_model *m, const struct weft_chat *chat, struct buf *out, int *marked, struct weft_error *e) {
    if (!m->chat)
        return error_set(e, WEFT_ERROR_INPUT, "there is no chat template to use (%s): give text or tokens",
                         m->chat_error.message);
    struct dialogue d = {0};
    int code = parse_dialogue(&d, chat, e);
    if (!code && marked) *marked = any_special(m, d.messages) || any_special(m, d.tools);
    if (!code && marked && *marked) code = mark_dialogue(m, &d, e);
    struct template_input in = TEMPLATE_INPUT;
    in.messages = d.messages, in.tools = d.tools, in.kwargs = d.kwargs;
    in.add_generation_prompt = !chat->continue_last, in.continue_final = chat->continue_last;
    in.thinking = chat->thinking > 0 ? 1 : chat->thinking < 0 ? 0 : -1;
    if (!code) code = template_render(m->chat, &in, out, NULL, e);
    drop_dialogue(&d);
    return code;
}

int weft_render(struct weft_model *m, const struct weft_chat *chat, char **text, size_t *n_bytes, struct weft_error *e) {
    struct buf out;
    buf_init(&out);
    buf_add_text(&out, "");
    int code = render(m, chat, &out, NULL, e);
    if (!code && !(*text = buf_take(&out, n_bytes))) code = error_memory(e, "the prompt");
    buf_drop(&out);
    return code;
}

/* Text between special tokens, its marks taken out. */
static int encode_stretch(const struct weft_model *m, const char *text, size_t n, struct token_list *ids, struct weft_error *e) {
    struct buf plain;
    buf_init(&plain);
    for (size_t i = 0; i < n;) {
        if (n - i >= MARK_BYTES && memcmp(text + i, mark, MARK_BYTES) == 0) i += MARK_BYTES;
        else buf_add_char(&plain, text[i++]);
    }
    int code = plain.failed ? error_memory(e, "the prompt") : 0;
    if (!code && plain.n) code = tokenizer_encode(m->tokenizer, plain.data, plain.n, TOKENIZER_ADDED_PLAIN, ids, e);
    buf_drop(&plain);
    return code;
}

static int encode_marked(const struct weft_model *m, const char *text, size_t n, struct token_list *ids, struct weft_error *e) {
    size_t begin = 0;
    int code = 0;
    for (size_t i = 0, length; i < n && !code;) {
        int32_t id = special_at(m, text + i, n - i, &length);
        if (id < 0) {
            i++;
            continue;
        }
        code = encode_stretch(m, text + begin, i - begin, ids, e);
        if (!code && token_list_add(ids, id)) code = error_memory(e, "the prompt");
        begin = i += length;
    }
    return code ? code : encode_stretch(m, text + begin, n - begin, ids, e);
}

int weft_render_tokens(struct weft_model *m, const struct weft_chat *chat, int32_t **ids, size_t *n_ids, struct weft_error *e) {
    struct buf text;
    struct token_list list = {0};
    int marked = 0;
    buf_init(&text);
    if (!m->tokenizer) return error_set(e, WEFT_ERROR_INPUT, "%s has no tokenizer.json: give token ids", m->folder);
    int code = render(m, chat, &text, &marked, e);
    if (!code && token_list_reserve(&list, 1)) code = error_memory(e, "the prompt");
    if (!code && marked) code = encode_marked(m, text.data, text.n, &list, e);
    else if (!code) code = tokenizer_encode(m->tokenizer, text.data ? text.data : "", text.n, TOKENIZER_ADDED_ALL, &list, e);
    if (code) token_list_drop(&list);
    else *ids = list.ids, *n_ids = list.n;
    buf_drop(&text);
    return code;
}

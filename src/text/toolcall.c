#include "text/toolcall.h"

#include <math.h>
#include <string.h>

#include "text/jinja.h"

/* A call is small; what does not fit these is no call. */
static const struct jinja_limits limits = {.steps = 4000000, .bytes = 64 << 20, .depth = 200};

struct reader { struct render *r; const json_t *tools; struct list calls; };

/* ---- values by their schema ---- */

static int begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

enum value_type { TYPE_TEXT, TYPE_INTEGER, TYPE_NUMBER, TYPE_BOOLEAN, TYPE_JSON };

static enum value_type type_named(const char *name) {
    static const struct { const char *begin; enum value_type type;
    } types[] = {{"int", TYPE_INTEGER},      {"uint", TYPE_INTEGER}, {"long", TYPE_INTEGER}, {"short", TYPE_INTEGER},
                 {"unsigned", TYPE_INTEGER}, {"num", TYPE_NUMBER},   {"float", TYPE_NUMBER}, {"double", TYPE_NUMBER},
                 {"bool", TYPE_BOOLEAN},     {"object", TYPE_JSON},  {"arr", TYPE_JSON},     {"dict", TYPE_JSON},
                 {"list", TYPE_JSON}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (begins(name, types[i].begin)) return types[i].type;
    return TYPE_TEXT;
}

/* Of several possible types text wins, as every value is text already; null is no type of its own. */
static enum value_type type_of(const json_t *schema) {
    const json_t *type = json_object_get(schema, "type"), *any = json_object_get(schema, "anyOf");
    if (!any) any = json_object_get(schema, "oneOf");
    if (json_is_string(type)) return type_named(json_string_value(type));
    const json_t *list = json_is_array(type) ? type : any;
    enum value_type out = TYPE_TEXT;
    int seen = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i), *name = list == type ? one : json_object_get(one, "type");
        if (json_is_string(name) && !strcmp(json_string_value(name), "null")) continue;
        enum value_type t = json_is_string(name) ? type_named(json_string_value(name)) : TYPE_JSON;
        if (t == TYPE_TEXT) return TYPE_TEXT;
        out = seen && out != t ? TYPE_JSON : t, seen = 1;
    }
    return out;
}

/* The schema of a parameter, or NULL. Functions are {"type": "function", "function": {...}} or bare. */
static const json_t *schema_of(const json_t *tools, struct value function, struct value key) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *inner = json_object_get(tool, "function");
        if (json_is_object(inner)) tool = inner;
        const json_t *name = json_object_get(tool, "name");
        if (!json_is_string(name) || json_string_length(name) != function.as.text->n ||
            memcmp(json_string_value(name), function.as.text->bytes, function.as.text->n))
            continue;
        const json_t *parameters = json_object_get(tool, "parameters");
        if (!parameters) parameters = json_object_get(tool, "input_schema");
        const json_t *properties = json_object_get(parameters, "properties");
        return json_object_getn(properties, key.as.text->bytes, key.as.text->n);
    }
    return NULL;
}

static int is_word(struct value text, const char *word) {
    const struct text *t = text.as.text;
    if (t->n != strlen(word)) return 0;
    for (size_t i = 0; i < t->n; i++)
        if ((t->bytes[i] | 32) != word[i]) return 0;
    return 1;
}

static struct value number(struct reader *d, struct value text, int whole) {
    const struct text *t = text.as.text;
    struct value v;
    double f;
    if (number_parse_int(t->bytes, t->n, 10, d->r, &v)) return v;
    if (!number_parse_float(t->bytes, t->n, &f) || !isfinite(f) || (whole && f != floor(f)))
        jinja_fail(d->r, FAULT_VALUE, "\"%.*s\" is not %s", (int)(t->n < 80 ? t->n : 80), t->bytes,
                   whole ? "an integer" : "a number");
    return f == floor(f) && fabs(f) < 9e15 ? value_int((int64_t)f) : value_float(f);
}

/* Python's spelling of lists and objects is an expression of the template language: 'a', None, True and tuples are known there.
 */
static void no_names(struct render *r, void *arg, struct dict *context) { (void)r, (void)arg, (void)context; }

static struct value python_literal(struct reader *d, struct value text) {
    struct out source = {0};
    enum jinja_fault fault;
    out_add_text(d->r, &source, "{{ (");
    out_add(d->r, &source, text.as.text->bytes, text.as.text->n);
    out_add_text(d->r, &source, ") | tojson }}");
    struct jinja *t = jinja_new(source.bytes, source.n, &fault, NULL);
    if (fault == FAULT_MEMORY) jinja_fail(d->r, FAULT_MEMORY, "no memory for a tool call");
    if (!t) return text;
    struct render r;
    struct value json;
    jinja_run_init(&r, &limits);
    char *copy = NULL;
    size_t n_json = 0;
    fault = jinja_render(t, &r, no_names, NULL, &json);
    if (!fault) n_json = json.as.text->n, copy = arena_copy_text(&d->r->arena, json.as.text->bytes, n_json);
    jinja_run_drop(&r);
    jinja_free(t);
    if (fault == FAULT_MEMORY || (!fault && !copy)) jinja_fail(d->r, FAULT_MEMORY, "no memory for a tool call");
    return fault ? text : json_to_value(d->r, copy, n_json, "a parameter");
}

static const char *first_char(struct value text) {
    const char *s = text.as.text->bytes, *end = s + text.as.text->n;
    while (s < end && char_is_space((unsigned char)*s)) s++;
    return s < end ? s : "";
}

static struct value json_or_literal(struct reader *d, struct value text) {
    struct value v;
    if (json_try_value(d->r, text.as.text->bytes, text.as.text->n, &v)) return v;
    char c = *first_char(text);
    if (c != '{' && c != '[' && c != '(') return text;
    return python_literal(d, text);
}

static struct value typed(struct reader *d, struct value text, const json_t *schema) {
    if (is_word(text, "null")) return NONE;
    if (!schema) return text;
    switch (type_of(schema)) {
    case TYPE_INTEGER: return number(d, text, 1);
    case TYPE_NUMBER: return number(d, text, 0);
    case TYPE_BOOLEAN: return value_bool(is_word(text_strip(d->r, text, NONE, 3), "true"));
    case TYPE_JSON: return json_or_literal(d, text);
    default: return text;
    }
}

/* ---- the forms ---- */

static void add_call(struct reader *d, struct value name, struct value arguments) {
    struct json_style style = {.item = value_text(d->r, ", "), .key = value_text(d->r, ": ")};
    struct out o = {0};
    value_json(d->r, &o, arguments, &style, 0);
    list_add(d->r, &d->calls, value_pair(d->r, name, out_take(d->r, &o)));
}

static const char *earlier(const char *a, const char *b) { return !a ? b : !b || a < b ? a : b; }
static const char *find(const char *s, const char *end, const char *what) {
    return text_find(s, (size_t)(end - s), what, strlen(what));
}

/* The end of a value. A missing </parameter> is forgiven where the next thing begins on a line of its own. */
static const char *value_end(const char *s, const char *end) {
    const char *at = earlier(find(s, end, "</parameter>"), earlier(find(s, end, "\n<parameter="), find(s, end, "\n</function>")));
    return at ? at : end;
}

/* One function: s is behind "<function=", end at its "</function>". */
static void read_function(struct reader *d, const char *s, const char *end) {
    struct dict arguments = {0};
    const char *close = memchr(s, '>', (size_t)(end - s));
    if (!close) jinja_fail(d->r, FAULT_VALUE, "a function's name has no end");
    struct value name = text_strip(d->r, value_text_n(d->r, s, (size_t)(close - s)), NONE, 3);
    if (!name.as.text->n) jinja_fail(d->r, FAULT_VALUE, "a function has no name");
    s = close + 1;
    while ((s = find(s, end, "<parameter="))) {
        s += strlen("<parameter=");
        close = memchr(s, '>', (size_t)(end - s));
        if (!close) jinja_fail(d->r, FAULT_VALUE, "a parameter's name has no end");
        struct value key = text_strip(d->r, value_text_n(d->r, s, (size_t)(close - s)), NONE, 3);
        const char *from = close + 1, *to = value_end(from, end);
        s = to;
        if (from < to && *from == '\n') from++;
        if (to > from && to[-1] == '\n') to--;
        struct value text = value_text_n(d->r, from, (size_t)(to - from));
        dict_set(d->r, &arguments, key, typed(d, text, schema_of(d->tools, name, key)));
    }
    add_call(d, name, value_dict(d->r, &arguments));
}

static void read_coder(struct reader *d, const char *s, const char *end) {
    while ((s = find(s, end, "<function="))) {
        s += strlen("<function=");
        const char *next = find(s, end, "<function="), *close = find(s, end, "</function>");
        /* "</function>" inside a value does not end it, as long as its parameter is still open there. */
        for (const char *open; close && (open = find(s, close, "<parameter=")); ) {
            const char *last = open;
            while ((open = find(last + 1, close, "<parameter="))) last = open;
            if (find(last, close, "</parameter>") || !find(close, next ? next : end, "</parameter>")) break;
            close = find(close + 1, end, "</function>");
        }
        const char *to = close ? close : next ? next : end;
        read_function(d, s, to);
        s = to;
    }
    if (!d->calls.n) jinja_fail(d->r, FAULT_VALUE, "no <function=NAME> in it");
}

static struct value member(struct reader *d, struct value v, const char *key) {
    struct value *found = dict_get_text(d->r, v.as.dict, key);
    return found ? *found : MISSING;
}

static void read_json_call(struct reader *d, struct value v) {
    if (v.kind != VALUE_DICT) jinja_fail(d->r, FAULT_VALUE, "it is not an object");
    struct value name = member(d, v, "name"), arguments = member(d, v, "arguments");
    if (!value_is_text(name) || !name.as.text->n) jinja_fail(d->r, FAULT_VALUE, "\"name\" is missing");
    if (arguments.kind == VALUE_MISSING) arguments = member(d, v, "parameters");
    if (value_is_text(arguments)) arguments = json_to_value(d->r, arguments.as.text->bytes, arguments.as.text->n, "arguments");
    if (arguments.kind == VALUE_MISSING || arguments.kind == VALUE_NONE) {
        struct dict none = {0};
        arguments = value_dict(d->r, &none);
    }
    if (arguments.kind != VALUE_DICT) jinja_fail(d->r, FAULT_VALUE, "\"arguments\" is not an object");
    add_call(d, name, arguments);
}

static void read_json(struct reader *d, const char *s, const char *end) {
    struct value v = json_to_value(d->r, s, (size_t)(end - s), "the call");
    if (v.kind != VALUE_LIST) { read_json_call(d, v); return; }
    for (size_t i = 0; i < v.as.list->n; i++) read_json_call(d, v.as.list->at[i]);
}

static const struct { const char *family; void (*read)(struct reader *, const char *, const char *); } forms[] = {
    {"qwen3_coder", read_coder}, {"json", read_json}, {"json_tools", read_json}};
enum { N_FORMS = sizeof forms / sizeof *forms };

static int form_of(const char *family) {
    int i = 0;
    while (i < N_FORMS && family && strcmp(forms[i].family, family)) i++;
    return family && i < N_FORMS ? i : -1;
}

int toolcall_family_is_known(const char *family) { return form_of(family) >= 0; }

static int read_all(struct reader *d, int form, const char *text, size_t n) {
    jmp_buf here;
    d->r->leave = &here;
    if (setjmp(here)) return 0;
    if (!text_is_valid(text, n)) jinja_fail(d->r, FAULT_VALUE, "it is not UTF-8");
    forms[form].read(d, text, text + n);
    return 1;
}

static int append(json_t *calls, const struct list *found, struct weft_error *e) {
    for (size_t i = 0; i < found->n; i++) {
        const struct value *pair = found->at[i].as.list->at;
        const struct text *name = pair[0].as.text, *arguments = pair[1].as.text;
        json_t *call = json_pack("{s:{s:s%, s:s%}, s:s}", "function", "name", name->bytes, name->n, "arguments", arguments->bytes,
                                 arguments->n, "type", "function");
        if (!call || json_array_append_new(calls, call)) {
            while (i-- > 0) json_array_remove(calls, json_array_size(calls) - 1);
            return error_memory(e, "a tool call");
        }
    }
    return (int)found->n;
}

int toolcall_parse(json_t *calls, const char *family, const char *text, size_t n, const json_t *tools, struct weft_error *e) {
    struct render r;
    struct reader d = {.r = &r, .tools = tools};
    int form = form_of(family), code;
    if (form < 0) return error_set(e, WEFT_ERROR_SUPPORT, "tool calls of the family \"%s\" cannot be read", family ? family : "");
    jinja_run_init(&r, &limits);
    if (read_all(&d, form, text, n)) code = append(calls, &d.calls, e);
    else if (r.fault == FAULT_MEMORY) code = error_memory(e, "a tool call");
    else error_set(e, WEFT_ERROR_INPUT, "a tool call is misspelt: %s", r.message), code = 0;
    jinja_run_drop(&r);
    return code;
}

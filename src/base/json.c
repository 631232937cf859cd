#include "base/json.h"

#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"

/* jansson reports a failed allocation as a syntax error, as nothing, gives an object with keys missing, or aborts: it loses a
 * letter of the string it reads and then asserts that escapes are whole. So it gets a second try, and what it made is thrown
 * away. */
static _Thread_local int no_memory;

static void *checked_alloc(size_t bytes) {
    void *p = mem_alloc(bytes);
    if (p) return p;
    no_memory = 1;
    return malloc(bytes);
}

static int parse(json_t **out, const char *text, size_t n, size_t flags, const char *name, struct weft_error *e) {
    json_error_t why;
    json_set_alloc_funcs(checked_alloc, mem_free);
    no_memory = 0;
    *out = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_ANY | flags, &why);
    if (no_memory) {
        json_decref(*out);
        *out = NULL;
        return error_memory(e, name);
    }
    if (*out) return 0;
    return error_set(e, WEFT_ERROR_INPUT, "%s: bad JSON at line %d, column %d: %s", name, why.line, why.column, why.text);
}

int json_parse(json_t **out, const char *text, size_t n, const char *name, struct weft_error *e) {
    return parse(out, text, n, 0, name, e);
}

int json_parse_unique(json_t **out, const char *text, size_t n, const char *name, struct weft_error *e) {
    return parse(out, text, n, JSON_REJECT_DUPLICATES, name, e);
}

int json_read_file(json_t **out, const char *path, size_t limit_bytes, struct weft_error *e) {
    struct buf text;
    buf_init(&text);
    int code = file_read(&text, path, limit_bytes, e);
    if (!code) code = json_parse(out, text.data, text.n, path, e);
    buf_drop(&text);
    return code;
}

static int absent(const json_t *v, const char *key, int required, const char *name, struct weft_error *e) {
    if (!required) return 0;
    return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is %s", name, key, v ? "null" : "missing");
}

int json_get_number(const json_t *o, const char *key, int required, double min, double max, double *out, const char *name,
                    struct weft_error *e) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return absent(v, key, required, name, e);
    if (!json_is_number(v)) return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is not a number", name, key);
    double x = json_number_value(v);
    if (!(x >= min && x <= max)) return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is %g, outside %g to %g", name, key, x, min, max);
    *out = x;
    return 0;
}

int json_get_int(const json_t *o, const char *key, int required, int64_t min, int64_t max, int64_t *out, const char *name,
                 struct weft_error *e) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return absent(v, key, required, name, e);
    double x = json_number_value(v);
    if (!json_is_integer(v) && !(json_is_real(v) && x == floor(x) && fabs(x) < 9e15))
        return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is not an integer", name, key);
    int64_t i = json_is_integer(v) ? json_integer_value(v) : (int64_t)x;
    if (i < min || i > max)
        return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is %lld, outside %lld to %lld", name, key, (long long)i, (long long)min,
                         (long long)max);
    *out = i;
    return 0;
}

int json_get_bool(const json_t *o, const char *key, int required, int *out, const char *name, struct weft_error *e) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return absent(v, key, required, name, e);
    if (!json_is_boolean(v)) return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is not true or false", name, key);
    *out = json_is_true(v);
    return 0;
}

int json_get_text(const json_t *o, const char *key, int required, const char **out, const char *name, struct weft_error *e) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return absent(v, key, required, name, e);
    if (!json_is_string(v)) return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is not text", name, key);
    *out = json_string_value(v);
    return 0;
}

/* jansson with sentences: every getter names the file and the field in its error. Borrowed strings live as long as the object. */
#ifndef BASE_JSON_H
#define BASE_JSON_H
#include <jansson.h>
#include <stdint.h>

#include "base/error.h"

/* Strict JSON; duplicate keys and U+0000 in strings accepted (the latter as bytes with a length). Release with json_decref. */
int json_parse(json_t **out, const char *text, size_t n, const char *name, struct weft_error *e);
/* The same, but a key that occurs twice in one object is an error. */
int json_parse_unique(json_t **out, const char *text, size_t n, const char *name, struct weft_error *e);
int json_read_file(json_t **out, const char *path, size_t limit_bytes, struct weft_error *e);

/* An integer within [min, max]. Absent or null: `*out` keeps its value when `required` is 0, else an error. A float with an
 * integral value counts. */
int json_get_int(const json_t *o, const char *key, int required, int64_t min, int64_t max, int64_t *out, const char *name,
                 struct weft_error *e);
int json_get_number(const json_t *o, const char *key, int required, double min, double max, double *out, const char *name,
                    struct weft_error *e);
int json_get_bool(const json_t *o, const char *key, int required, int *out, const char *name, struct weft_error *e);
int json_get_text(const json_t *o, const char *key, int required, const char **out, const char *name, struct weft_error *e);
#endif

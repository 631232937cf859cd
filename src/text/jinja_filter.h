/* The two tables of filters, the search in such a table, and their flags. */
#ifndef TEXT_JINJA_FILTER_H
#define TEXT_JINJA_FILTER_H
#include "text/jinja.h"

extern const struct function list_filters[];
const struct function *function_find(const struct function *table, const char *name, size_t n);
/* A parameter that is true or false. */
static inline int filter_flag(struct render *r, struct value v, int otherwise) {
    return v.kind == VALUE_MISSING ? otherwise : value_truth(r, v);
}
#endif

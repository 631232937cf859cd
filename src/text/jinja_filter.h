/* The two tables of filters, and the search in such a table. */
#ifndef TEXT_JINJA_FILTER_H
#define TEXT_JINJA_FILTER_H
#include "text/jinja.h"

extern const struct function list_filters[];
const struct function *function_find(const struct function *table, const char *name, size_t n);
#endif

#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void clean(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 32 || *text == 127) *text = '?';
}

int error_set(struct weft_error *e, int code, const char *format, ...) {
    if (!e) return code;
    e->code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    clean(e->message);
    return code;
}

int error_prefix(struct weft_error *e, const char *format, ...) {
    if (!e) return WEFT_ERROR_INPUT;
    char old[sizeof e->message];
    memcpy(old, e->message, sizeof old);
    va_list args;
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message - 2, format, args);
    va_end(args);
    size_t n = strlen(e->message), n_old = strlen(old), room = sizeof e->message - n - 3;
    if (n_old > room) n_old = room;
    memcpy(e->message + n, ": ", 2);
    memcpy(e->message + n + 2, old, n_old);
    e->message[n + 2 + n_old] = 0;
    clean(e->message);
    return e->code;
}

int error_memory(struct weft_error *e, const char *what) { return error_set(e, WEFT_ERROR_MEMORY, "no memory for %s", what); }

void error_abort(const char *file, int line, const char *condition) {
    fprintf(stderr, "weft: internal error at %s:%d: %s\n", file, line, condition);
    abort();
}

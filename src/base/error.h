/* One sentence for what comes from outside; a stop for our own bugs. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H
#include "weft.h"

/* Writes code and sentence into e (which may be NULL) and returns code, so that a caller can `return error_set(...)`.
 * The sentence names the file, tensor or field, has no full stop and no newline. Control characters that came from
 * outside are shown as '?'. */
int error_set(struct weft_error *e, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Puts "what: " before the sentence that e already holds. Returns e's code. */
int error_prefix(struct weft_error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
int error_memory(struct weft_error *e, const char *what); /* WEFT_ERROR_MEMORY, "no memory for WHAT" */

/* Our own bug: prints place and condition and aborts, in release builds too. */
#define CHECK(condition) ((condition) ? (void)0 : error_abort(__FILE__, __LINE__, #condition))
_Noreturn void error_abort(const char *file, int line, const char *condition);
#endif

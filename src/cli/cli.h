/* What the commands share: the table's row, output that notices a lost reader, progress on a terminal. */
#ifndef CLI_CLI_H
#define CLI_CLI_H
#include <stddef.h>

#include "base/error.h"

struct command {
    const char *name, *summary;
    /* argv[0] is the command's name. 0, or a negative code with a sentence: main prints it and exits with 1. */
    int (*run)(int argc, char **argv, struct weft_error *e);
};
extern const struct command *const commands[]; /* main.c; ends with NULL */

/* Standard output. Errors (a closed pipe, a full disk) stick; out_check flushes and tells of them. */
void out_bytes(const void *bytes, size_t n);
void out_text(const char *text);
void out_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
int out_check(struct weft_error *e);

/* A line on standard error while something takes more than a second; nothing when that is no terminal. `fraction` below 0:
 * not known. The signature fits the library's progress callbacks. */
void progress_show(void *arg, const char *what, double fraction);
void progress_end(void); /* removes the line */

/* Warnings of the library go to standard error. */
void warnings_show(void);

/* The folder of a model named by a path or by a Hub name (ORG/NAME); free it with mem_free. The Hub cache's place is the one
 * thing that comes from the environment: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub. */
int model_find(char **folder, const char *path_or_name, struct weft_error *e);
#endif

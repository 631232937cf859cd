/* Options of a command: a table, one row an option. Of a repeated option the last wins, except where it collects (ARG_TEXTS).
 * `--name value` and `--name=value`; `-c value`; `--` ends options; the value is the next argument whatever it begins with. */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum arg_kind {
    ARG_FLAG,   /* int: set to 1 */
    ARG_COUNT,  /* int in [min, max]; k, M and G are powers of 1024 */
    ARG_SIZE,   /* size_t, bytes; the same letters */
    ARG_SEED,   /* uint64_t */
    ARG_NUMBER, /* double in [min, max] */
    ARG_TEXT,   /* const char * */
    ARG_TEXTS,  /* struct arg_texts: every use adds one */
    ARG_CHOICE, /* int: place in `form`, "default|high" */
};
enum { ARG_TEXTS_MAX = 64, ARG_POSITIONAL_MAX = 4 };
struct arg_texts { int n; const char *text[ARG_TEXTS_MAX]; };

struct arg {
    const char *name;
    char letter;        /* 0: none */
    enum arg_kind kind;
    void *value;        /* keeps what it holds when the option is not given */
    const char *form;   /* of the value, for help and sentences: "N", "FILE" */
    const char *help;
    double min, max;    /* ARG_COUNT, ARG_NUMBER */
};
struct arg_group { const char *title; const struct arg *args; int n_args; };

struct args {
    const char *usage;  /* "MODEL (--prompt TEXT | ...)" */
    const char *about;  /* paragraphs for --help */
    struct arg_group group[4];
    int n_groups;
    int min_positional, max_positional;

    const char *positional[ARG_POSITIONAL_MAX]; /* filled, like n_positional, by args_parse */
    int n_positional;
};
enum { ARGS_HELP = 1 }; /* --help was given and is printed: nothing more to do */

/* argv[0] is the command's name. 0, ARGS_HELP or an error. */
int args_parse(struct args *a, int argc, char **argv, struct weft_error *e);

/* "12k" to 12288; 0 when `text` is not a size. */
int args_read_size(const char *text, uint64_t *out);
/* Ids (or any integers) separated by commas and white space into *out, n of them (mem_free). `name` begins the sentence. */
int args_read_ids(int32_t **out, int *n, const char *text, size_t n_bytes, const char *name, struct weft_error *e);
#endif

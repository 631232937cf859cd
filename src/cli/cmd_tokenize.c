#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "text/tokenizer.h"

enum { INPUT_BYTES_MAX = 1 << 30 };

struct options { const char *text_file, *tokens_file; int added, json, decode, skip_special; };

/* A tokenizer.json, or a model that has one. */
static int open_tokenizer(struct tokenizer **t, const char *model, struct weft_error *e) {
    if (file_exists(model) && !file_is_folder(model)) return tokenizer_open(t, model, e);
    char *folder, *path = NULL;
    int r = model_find(&folder, model, e);
    if (!r && !(path = file_join(folder, "tokenizer.json"))) r = error_memory(e, model);
    if (!r) r = tokenizer_open(t, path, e);
    mem_free(path), mem_free(folder);
    return r;
}

/* The argument if there is one, else the file, else standard input. */
static int read_input(struct buf *out, const char *argument, const char *file, struct weft_error *e) {
    if (argument && file) return error_set(e, WEFT_ERROR_INPUT, "give either a text or a file, not both");
    if (!argument) return file_read(out, file ? file : "-", INPUT_BYTES_MAX, e);
    buf_add_text(out, argument);
    return out->failed ? error_memory(e, "the text") : 0;
}

static int print_ids(struct tokenizer *t, const struct buf *text, const struct options *o, struct weft_error *e) {
    struct token_list ids = {0};
    static const enum tokenizer_added modes[] = {TOKENIZER_ADDED_ALL, TOKENIZER_ADDED_PLAIN, TOKENIZER_ADDED_NONE};
    int r = tokenizer_encode(t, text->data ? text->data : "", text->n, modes[o->added], &ids, e);
    if (!r) {
        out_text(o->json ? "{\"ids\": [" : "");
        for (size_t i = 0; i < ids.n; i++) out_printf("%s%d", i == 0 ? "" : o->json ? ", " : ",", ids.ids[i]);
        out_text(o->json ? "]}\n" : "\n");
    }
    token_list_drop(&ids);
    return r;
}

static int print_text(struct tokenizer *t, const struct buf *list, const struct options *o, struct weft_error *e) {
    int32_t *ids = NULL;
    int n = 0, r = args_read_ids(&ids, &n, list->data ? list->data : "", list->n, o->tokens_file ? o->tokens_file : "the ids", e);
    if (r) return r;
    struct buf text;
    buf_init(&text);
    r = tokenizer_decode(t, ids, (size_t)n, o->skip_special, &text, e);
    if (!r) out_bytes(text.data, text.n);
    buf_drop(&text), mem_free(ids);
    return r;
}

static int run(int argc, char **argv, struct weft_error *e) {
    struct options o = {.added = 1};
    const struct arg list[] = {
        {"text-file", 0, ARG_TEXT, &o.text_file, "F", "the text; - for standard input", 0, 0},
        {"added", 0, ARG_CHOICE, &o.added, "all|plain|none",
         "which added tokens of the text become their ids: all, all but\nthe special ones (plain, the default), or none", 0, 0},
        {"json", 0, ARG_FLAG, &o.json, NULL, "print {\"ids\": [...]}", 0, 0},
        {"decode", 0, ARG_FLAG, &o.decode, NULL, "ids to text instead", 0, 0},
        {"tokens-file", 0, ARG_TEXT, &o.tokens_file, "F", "the ids, separated by commas; - for standard input", 0, 0},
        {"skip-special", 0, ARG_FLAG, &o.skip_special, NULL, "with --decode: leave special tokens out", 0, 0},
    };
    struct args a = {
        .usage = "MODEL|tokenizer.json [TEXT | --text-file F | --decode [IDS | --tokens-file F]]",
        .about = "Prints the token ids of a text, or with --decode the text of token ids and nothing else.\n"
                 "Without a text or file it reads standard input. No begin or end token is added.",
        .group = {{"options", list, sizeof list / sizeof *list}}, .n_groups = 1, .min_positional = 1, .max_positional = 2};
    int r = args_parse(&a, argc, argv, e);
    if (r) return r < 0 ? r : 0;
    if (o.decode ? o.text_file != NULL : o.tokens_file != NULL)
        return error_set(e, WEFT_ERROR_INPUT, "%s", o.decode ? "--decode takes --tokens-file, not --text-file"
                                                             : "--tokens-file goes with --decode");
    struct tokenizer *t = NULL;
    struct buf input;
    buf_init(&input);
    r = open_tokenizer(&t, a.positional[0], e);
    if (!r) r = read_input(&input, a.n_positional > 1 ? a.positional[1] : NULL, o.decode ? o.tokens_file : o.text_file, e);
    if (!r) r = o.decode ? print_text(t, &input, &o, e) : print_ids(t, &input, &o, e);
    buf_drop(&input);
    tokenizer_close(t);
    return r;
}

const struct command command_tokenize = {"tokenize", "text to token ids and back", run};

#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

#ifndef WEFT_VERSION
#define WEFT_VERSION "unknown"
#endif

/* One row a command, one file a row: cmd_NAME.c. */
extern const struct command command_generate, command_chat, command_tokenize, command_render, command_perplexity, command_inspect,
    command_bench, command_logits, command_batch;
const struct command *const commands[] = {
    &command_generate, &command_chat,  &command_tokenize, &command_render, &command_perplexity,
    &command_inspect,  &command_bench, &command_logits,   &command_batch,
    NULL,
};

static void print_commands(void) {
    out_text("usage: weft COMMAND ...   (weft COMMAND --help tells its options)\n\n");
    for (int i = 0; commands[i]; i++) out_printf("  %-12s %s\n", commands[i]->name, commands[i]->summary);
    out_text("\nMODEL is a checkpoint's folder, or a Hub name such as Qwen/Qwen3.5-4B that is in the local Hugging Face cache.\n");
}

static int run(int argc, char **argv, struct weft_error *e) {
    const char *name = argc > 1 ? argv[1] : "--help";
    if (!strcmp(name, "--version") || !strcmp(name, "version")) {
        out_text("weft " WEFT_VERSION "\n");
        return 0;
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_commands();
        return argc > 1 ? 0 : error_set(e, WEFT_ERROR_INPUT, "no command given");
    }
    for (int i = 0; commands[i]; i++)
        if (!strcmp(commands[i]->name, name)) return commands[i]->run(argc - 1, argv + 1, e);
    return error_set(e, WEFT_ERROR_INPUT, "unknown command \"%s\"; weft --help lists the commands", name);
}

int main(int argc, char **argv) {
    struct weft_error e = {0}, lost = {0};
    signal(SIGPIPE, SIG_IGN); /* a lost reader is an error to report, not an end without a word */
    warnings_show();
    int r = run(argc, argv, &e);
    progress_end();
    if (r < 0) fprintf(stderr, "weft: %s\n", e.message);
    if (out_check(&lost) < 0 && r >= 0) fprintf(stderr, "weft: %s\n", lost.message), r = lost.code;
    return r < 0 ? 1 : 0;
}

/* What drafting brings: decode time with and without, by kind of text, and how often each depth is kept.
 *     bench_draft MODEL [TOKENS [TEMPERATURE]] */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "weft.h"

enum { ROUNDS = 5 };

struct kind { const char *name, *messages; int thinking; };
static const struct kind kinds[] = {
    {"sum, thinking", "[{\"role\":\"user\",\"content\":\"What is 4571 + 8835?\"}]", 1},
    {"story", "[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]", -1},
    {"repeat", "[{\"role\":\"user\",\"content\":\"Repeat after me: need bowl conquest need bowl conquest\"}]", -1},
    {"sort", "[{\"role\":\"user\",\"content\":\"Sort these numbers: 83, 23, 66, 12, 99, 45, 31\"}]", -1},
    {"definition", "[{\"role\":\"user\",\"content\":\"Define the word compass.\"}]", -1},
};
static const char *const drafts[] = {"none", "mtp", "ngram"};
enum { N_KINDS = sizeof kinds / sizeof *kinds, N_DRAFTS = sizeof drafts / sizeof *drafts };

struct run { double ms, first; int n, drafted[WEFT_DRAFT_MAX], accepted[WEFT_DRAFT_MAX]; };

/* Processor time, so that a busy machine does not show. */
static double cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int take(void *arg, const struct weft_event *event) {
    struct run *r = arg;
    if (event->kind == WEFT_EVENT_TOKEN && r->n++ == 0) r->first = cpu_ms();
    if (event->kind == WEFT_EVENT_DONE) {
        memcpy(r->drafted, event->result->drafted, sizeof r->drafted);
        memcpy(r->accepted, event->result->accepted, sizeof r->accepted);
    }
    return 0;
}

static int run_once(struct weft_model *m, const struct kind *k, const char *draft, int n_tokens, double temperature,
                    struct run *out, struct weft_error *e) {
    struct weft_engine *x;
    struct weft_request_options o;
    struct weft_answer a;
    int code = weft_engine_open(&x, m, &(struct weft_engine_options){.draft = draft, .without_prefix_cache = 1}, e);
    if (code) return code;
    *out = (struct run){0};
    weft_request_defaults(m, &o);
    o.chat.messages = k->messages, o.chat.thinking = k->thinking;
    o.sampling.temperature = (float)temperature, o.sampling.top_p = 1, o.sampling.top_k = 0;
    o.ignore_eos = 1, o.max_tokens = n_tokens, o.want_tokens = 1, o.on_event = take, o.arg = out;
    code = weft_generate(&a, x, &o, e);
    out->ms = cpu_ms() - out->first;
    if (!code) weft_answer_drop(&a);
    weft_engine_close(x);
    return code;
}

static int by_size(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void print_row(const struct kind *k, int d, double ms, double plain_ms, const struct run *r) {
    printf("%-14s %-6s %8.3f ms/token  x%.2f ", k->name, drafts[d], ms / (r->n - 1), plain_ms / ms);
    for (int i = 0; i < WEFT_DRAFT_MAX && r->drafted[i]; i++) printf("  %d/%d", r->accepted[i], r->drafted[i]);
    printf("\n");
}

int main(int argc, char **argv) {
    struct weft_error e = {0, ""};
    struct weft_model *m;
    int n_tokens = argc > 2 ? atoi(argv[2]) : 200;
    double temperature = argc > 3 ? atof(argv[3]) : 0;
    if (argc < 2 || n_tokens < 2) return fprintf(stderr, "usage: bench_draft MODEL [TOKENS [TEMPERATURE]]\n"), 2;
    if (weft_model_open(&m, argv[1], &(struct weft_model_options){.threads = 1}, &e))
        return fprintf(stderr, "%s\n", e.message), 1;
    for (int k = 0; k < N_KINDS; k++) {
        double ms[N_DRAFTS][ROUNDS];
        struct run last[N_DRAFTS];
        for (int round = 0; round < ROUNDS; round++) /* interleaved, so that a slow minute hits all */
            for (int d = 0; d < N_DRAFTS; d++) {
                if (run_once(m, &kinds[k], drafts[d], n_tokens, temperature, &last[d], &e))
                    return fprintf(stderr, "%s\n", e.message), 1;
                ms[d][round] = last[d].ms;
            }
        for (int d = 0; d < N_DRAFTS; d++) qsort(ms[d], ROUNDS, sizeof **ms, by_size);
        for (int d = 0; d < N_DRAFTS; d++) print_row(&kinds[k], d, ms[d][ROUNDS / 2], ms[0][ROUNDS / 2], &last[d]);
    }
    weft_model_close(m);
    return 0;
}

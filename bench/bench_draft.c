/* What drafting brings, and that it never costs much: decode time with and without, by kind of text, of an engine's first
 * request and of its second, and how often each depth is kept. The model as its own drafter can never pay; temperature 2.5 makes all guesses wrong.
 *     bench_draft MODEL [TOKENS [TEMPERATURE [ROUNDS]]] */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../bench/sample.h"
#include "weft.h"

enum { MOST_ROUNDS = 64, LONG_LINES = 120 };

struct kind { const char *name, *messages; int thinking; double temperature; }; /* temperature -1: the caller's */
static char long_messages[16384];
static const struct kind kinds[] = {
    {"sum, thinking", "[{\"role\":\"user\",\"content\":\"What is 4571 + 8835?\"}]", 1, -1},
    {"story", "[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]", -1, -1},
    {"story, drawn", "[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]", -1, 1},
    {"repeat", "[{\"role\":\"user\",\"content\":\"Repeat after me: need bowl conquest need bowl conquest\"}]", -1, -1},
    {"sort", "[{\"role\":\"user\",\"content\":\"Sort these numbers: 83, 23, 66, 12, 99, 45, 31\"}]", -1, -1},
    {"definition", "[{\"role\":\"user\",\"content\":\"Define the word compass.\"}]", -1, -1},
    {"long prompt", long_messages, -1, -1},
};
static const char *const drafts[] = {"none", "mtp", "ngram", "model"};
enum { N_KINDS = sizeof kinds / sizeof *kinds, N_DRAFTS = sizeof drafts / sizeof *drafts };

struct run { double begin, first, end; int n, n_prompt, drafted[WEFT_DRAFT_MAX], accepted[WEFT_DRAFT_MAX]; };

struct setting { struct weft_model *model; int n_tokens, rounds; double temperature; };

/* Processor time, so that a busy machine does not show. */
static double cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void write_long_messages(void) {
    char *at = long_messages;
    at += sprintf(at, "[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < LONG_LINES; i++) at += sprintf(at, "Box %d holds %d bowls and a letter from the north. ", i, i * 37 % 91);
    sprintf(at, "Tell me a story.\"}]");
}

static int take(void *arg, const struct weft_event *event) {
    struct run *r = arg;
    if (event->kind == WEFT_EVENT_TOKEN && r->n++ == 0) r->first = cpu_ms();
    if (event->kind == WEFT_EVENT_DONE) {
        r->n_prompt = event->result->n_prompt;
        memcpy(r->drafted, event->result->drafted, sizeof r->drafted);
        memcpy(r->accepted, event->result->accepted, sizeof r->accepted);
    }
    return 0;
}

static int ask(struct weft_engine *x, const struct setting *s, const struct kind *k, struct run *out, struct weft_error *e) {
    struct weft_request_options o;
    struct weft_answer a;
    *out = (struct run){.begin = cpu_ms()};
    weft_request_defaults(s->model, &o);
    o.chat.messages = k->messages, o.chat.thinking = k->thinking;
    o.sampling.temperature = (float)(k->temperature < 0 ? s->temperature : k->temperature);
    o.sampling.top_p = 1, o.sampling.top_k = 0, o.sampling.seed = 3;
    o.ignore_eos = 1, o.max_tokens = s->n_tokens, o.want_tokens = 1, o.on_event = take, o.arg = out;
    int code = weft_generate(&a, x, &o, e);
    out->end = cpu_ms();
    if (!code) weft_answer_drop(&a);
    return code;
}

/* A new engine, which knows nothing about the drafter at first. */
static int ask_twice(const struct setting *s, const struct kind *k, const char *draft, struct run out[2], struct weft_error *e) {
    struct weft_engine *x;
    int code = weft_engine_open(&x, s->model, &(struct weft_engine_options){.draft = draft, .draft_model = s->model,
                                                                            .without_prefix_cache = 1}, e);
    for (int i = 0; i < 2 && !code; i++) code = ask(x, s, k, &out[i], e);
    weft_engine_close(x);
    return code;
}

/* Interleaved, so that a slow minute hits all; a ratio is that of neighbours. Returns the lowest median ratio, or < 0. */
static double measure(const struct setting *s, const struct kind *k, struct weft_error *e) {
    static double ms[N_DRAFTS][MOST_ROUNDS], ratio[2][N_DRAFTS][MOST_ROUNDS], prompt[N_DRAFTS][MOST_ROUNDS];
    struct run last[N_DRAFTS][2];
    double lowest = 1, plain[2];
    for (int round = 0; round < s->rounds; round++)
        for (int d = 0; d < N_DRAFTS; d++) {
            if (ask_twice(s, k, drafts[d], last[d], e)) return -1;
            for (int i = 0; i < 2; i++) {
                double took = last[d][i].end - last[d][i].first;
                if (d == 0) plain[i] = took;
                ratio[i][d][round] = plain[i] / took;
            }
            ms[d][round] = (last[d][1].end - last[d][1].first) / (last[d][1].n - 1);
            prompt[d][round] = last[d][0].first - last[d][0].begin;
        }
    for (int d = 0; d < N_DRAFTS; d++) {
        printf("%-14s %-6s prompt %4d %6.0f ms; %.3f ms/token, least", k->name, drafts[d], last[d][0].n_prompt,
               median(prompt[d], s->rounds), median(ms[d], s->rounds));
        printf(" %.3f;", ms[d][0]); /* they are sorted now */
        for (int i = 0; i < 2; i++) {
            double typical = median(ratio[i][d], s->rounds);
            printf(" %s x%.3f (%.3f-%.3f)", i ? "then" : "first", typical, ratio[i][d][0], ratio[i][d][s->rounds - 1]);
            for (int j = 0; j < WEFT_DRAFT_MAX && last[d][i].drafted[j]; j++)
                printf(" %d/%d", last[d][i].accepted[j], last[d][i].drafted[j]);
            if (typical < lowest) lowest = typical;
        }
        printf("\n");
    }
    fflush(stdout);
    return lowest;
}

int main(int argc, char **argv) {
    struct weft_error e = {0, ""};
    struct setting s = {.n_tokens = argc > 2 ? atoi(argv[2]) : 200, .temperature = argc > 3 ? atof(argv[3]) : 0,
                        .rounds = argc > 4 ? atoi(argv[4]) : 5};
    if (argc < 2 || s.n_tokens < 2 || s.rounds < 1 || s.rounds > MOST_ROUNDS)
        return fprintf(stderr, "usage: bench_draft MODEL [TOKENS [TEMPERATURE [ROUNDS]]]\n"), 2;
    if (weft_model_open(&s.model, argv[1], &(struct weft_model_options){.threads = 1}, &e))
        return fprintf(stderr, "%s\n", e.message), 1;
    write_long_messages();
    double lowest = 1;
    for (int k = 0; k < N_KINDS; k++) {
        double ratio = measure(&s, &kinds[k], &e);
        if (ratio < 0) return fprintf(stderr, "%s\n", e.message), 1;
        if (ratio < lowest) lowest = ratio;
    }
    printf("slowest: x%.3f of plain decode\n", lowest);
    weft_model_close(s.model);
    return 0;
}

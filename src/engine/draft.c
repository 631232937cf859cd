/* The list of drafters and the control of how long drafts are.
 *
 * A draft of k tokens costs the drafter's time and k more rows in the step; it brings p1 + p1 p2 + ... more tokens, p_d being the
 * chance that draft d is kept once those before it were. The control keeps running means of p_d for each request, and of what a
 * row and a draft cost for the engine, and lengthens a draft as long as the next token brings more than the time it takes would
 * bring without it. Times are processor times of the stepping thread, which does its share of every step: what other programs do
 * at the moment is not held against drafts. When nothing pays it drafts once in a while, less and less often, to see whether that is still so. */
#include "engine/draft.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static const struct drafter *const drafters[] = {&draft_mtp, &draft_ngram, &draft_model, NULL};

enum {
    MOST_ROWS = 64,
    FIRST_PAUSE = 16, LONGEST_PAUSE = 256, /* tokens */
    PLAIN_STEPS = 2, PLAIN_AGE = 48,      /* steps without drafts that are timed at first; after how many it is done again */
    FORGOTTEN = 100,                      /* steps after which a time is not believed any more */
    TRIED_ENOUGH = 2, FIRST_LENGTH = 1,   /* drafts of a new request are short until so many were judged */
    STRETCH_EVERY = 12,
};
/* Below this chance the first draft never pays: it costs a row and a run of the drafter, a seventh of a step at the least. */
static const double HOPELESS = 0.2;

/* step_ms[n]: a step of n rows of decoding requests and nothing else. */
struct draft_control {
    double step_ms[MOST_ROWS + 1];
    long steps;                       /* so far */
    long seen_at[MOST_ROWS + 1], plain_at[MOST_ROWS + 1]; /* the last one of so many rows, and the last without drafts */
    int n_plain[MOST_ROWS + 1], turns;
    double draft_ms;                  /* of one draft token of one request */
    double kept[WEFT_DRAFT_MAX];      /* over all requests: where a new one begins */
};

struct draft_state {
    void *data;                       /* the drafter's own */
    double kept[WEFT_DRAFT_MAX];      /* chance that draft d is kept once the ones before were */
    int seen[WEFT_DRAFT_MAX];         /* drafts that it was learnt from */
    int pause, next_pause;            /* tokens until the next try; how long the pause after it */
};

/* What a thing takes when nothing disturbs it: down at once, up slowly. */
static void blend(double *ms, double seen) {
    *ms = *ms > 0 ? *ms + (seen < *ms ? 0.5 : 0.05) * (seen - *ms) : seen;
}

int draft_open(struct weft_engine *x, struct weft_error *e) {
    const char *name = x->o.draft;
    if (!name || strcmp(name, "none") == 0) return 0;
    for (int i = 0; drafters[i]; i++)
        if (strcmp(drafters[i]->name, name) == 0) x->drafter = drafters[i];
    if (!x->drafter) return error_set(e, WEFT_ERROR_INPUT, "there is no drafter \"%s\": none, mtp, ngram, model", name);
    x->control = mem_new(1, sizeof *x->control);
    if (!x->control) return error_memory(e, "the drafter");
    for (int d = 0; d < WEFT_DRAFT_MAX; d++) x->control->kept[d] = 0.7;
    int code = x->drafter->open ? x->drafter->open(x, e) : 0;
    if (code) x->drafter = NULL;
    return code;
}

void draft_close(struct weft_engine *x) {
    if (x->drafter && x->drafter->close) x->drafter->close(x);
    mem_free(x->control);
    x->drafter = NULL, x->control = NULL;
}

int draft_spare_rows(const struct weft_engine *x) { return x->drafter ? x->o.draft_max + 1 : 0; }

int draft_start(struct weft_request *r, struct weft_error *e) {
    struct weft_engine *x = r->engine;
    if (!x->drafter || r->o.without_draft || r->max_tokens < 2) return 0;
    struct draft_state *s = arena_new(&r->arena, 1, sizeof *s);
    if (!s) return error_memory(e, "the request");
    for (int d = 0; d < WEFT_DRAFT_MAX; d++) s->kept[d] = x->control->kept[d];
    s->next_pause = FIRST_PAUSE;
    r->draft = s;
    int code = x->drafter->start ? x->drafter->start(r, &s->data, e) : 0;
    if (code) r->draft = NULL;
    return code;
}

void draft_finish(struct weft_request *r) {
    if (r->draft && r->engine->drafter->finish) r->engine->drafter->finish(r, r->draft->data);
    r->draft = NULL;
}

void *draft_data(const struct weft_request *r) { return r->draft ? r->draft->data : NULL; }

int draft_sees_hidden(const struct weft_request *r) { return r->draft && r->engine->drafter->wants_hidden; }

/* Was seen, and lately: a step that something disturbed must not be believed for ever. */
static int is_known(const struct draft_control *c, int n) { return c->step_ms[n] > 0 && c->steps - c->seen_at[n] <= FORGOTTEN; }

/* What a step of n rows takes, by the nearest sizes that were seen. 0: nothing was seen. */
static double step_ms(const struct draft_control *c, int n) {
    if (n > MOST_ROWS) n = MOST_ROWS;
    int below = n, above = n;
    while (below > 0 && !is_known(c, below)) below--;
    while (above <= MOST_ROWS && !is_known(c, above)) above++;
    if (above == n) return c->step_ms[n];
    if (below > 0 && above <= MOST_ROWS)
        return c->step_ms[below] + (c->step_ms[above] - c->step_ms[below]) * (n - below) / (above - below);
    if (below > 0) return c->step_ms[below] * (1 + 0.1 * (n - below)); /* a guess, soon replaced by what is seen */
    return above <= MOST_ROWS ? c->step_ms[above] : 0;
}

/* The length that gives the most tokens for the time, with `rows` rows in the step besides. */
static int best_length(const struct draft_control *c, const struct draft_state *s, int rows, int max) {
    double plain = step_ms(c, rows);
    if (s->seen[0] < TRIED_ENOUGH && max > FIRST_LENGTH) max = FIRST_LENGTH;
    if (s->seen[0] >= TRIED_ENOUGH && s->kept[0] < HOPELESS) return 0;
    double tokens = 1, chance = 1, best_rate = rows / plain;
    int best = 0;
    for (int d = 1; d <= max; d++) {
        chance *= s->kept[d - 1];
        tokens += chance;
        /* the other requests get their tokens later for it: what counts is the step's tokens by its time */
        double rate = (rows - 1 + tokens) / (step_ms(c, rows + d) + d * c->draft_ms);
        if (rate > best_rate) best_rate = rate, best = d;
    }
    return best;
}

/* Now and then one more than seems best, so that a time that something disturbed is measured again. */
static int stretch(struct draft_control *c, const struct draft_state *s, int n, int max) {
    return n > 0 && n < max && s->kept[n] > 0.5 && ++c->turns % STRETCH_EVERY == 0 ? n + 1 : n;
}

/* What a step takes without drafts has to be known, and known anew from time to time, before anything can be said about them. */
static int wants_plain(const struct draft_control *c, int rows) {
    return rows <= MOST_ROWS && (c->n_plain[rows] < PLAIN_STEPS || c->steps - c->plain_at[rows] > PLAIN_AGE);
}

int draft_wanted(struct weft_request *r) {
    struct weft_engine *x = r->engine;
    struct draft_state *s = r->draft;
    if (!s) return 0;
    if (x->o.draft_always) return x->o.draft_max;
    if (s->pause > 0) return 0;
    int decoding = 0;
    for (int i = 0; i < x->n_running; i++) decoding += x->running[i]->started_answer;
    if (wants_plain(x->control, decoding)) return 0;
    int n = stretch(x->control, s, best_length(x->control, s, decoding, x->o.draft_max), x->o.draft_max);
    if (n > 0) {
        s->next_pause = FIRST_PAUSE;
        return n;
    }
    /* it does not pay: one short try, then a pause twice as long as the last */
    s->pause = s->next_pause;
    if (s->next_pause < LONGEST_PAUSE) s->next_pause *= 2;
    return 1;
}

int draft_is_resting(const struct weft_request *r) { return r->draft && r->draft->pause > 0; }

void draft_paused(struct weft_request *r, int n_tokens) {
    if (r->draft && r->draft->pause > 0) r->draft->pause = r->draft->pause > n_tokens ? r->draft->pause - n_tokens : 0;
}

int draft_run(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e) {
    double begin = clock_work_ms();
    int wanted = 0;
    for (int i = 0; i < n; i++) wanted += r[i]->n_drafts;
    int code = x->drafter->draft(x, r, n, e);
    if (wanted) blend(&x->control->draft_ms, (clock_work_ms() - begin) / wanted);
    for (int i = 0; !code && x->draft_hook && i < n; i++) x->draft_hook(x->draft_hook_arg, r[i], r[i]->drafts, r[i]->n_drafts);
    return code;
}

void draft_learn(struct weft_request *r, int drafted, int accepted) {
    struct weft_engine *x = r->engine;
    for (int d = 0; d < drafted; d++) {
        r->result.drafted[d]++, x->stats.drafted[d]++;
        if (d < accepted) r->result.accepted[d]++, x->stats.accepted[d]++;
        if (d > accepted) continue; /* nobody looked at it */
        /* the first few count most: a drafter that is always wrong is found out in three tries */
        double *mean = &r->draft->kept[d], *all = &x->control->kept[d], weight = 1.0 / (2 + r->draft->seen[d]++);
        *mean += (weight > 0.08 ? weight : 0.08) * ((d < accepted) - *mean);
        *all += 0.02 * ((d < accepted) - *all);
    }
}

void draft_clock(struct weft_engine *x, int rows, int n_drafts, double ms) {
    struct draft_control *c = x->control;
    if (!c || rows < 1 || rows > MOST_ROWS) return;
    c->steps++;
    if (is_known(c, rows)) blend(&c->step_ms[rows], ms);
    else c->step_ms[rows] = ms;
    c->seen_at[rows] = c->steps;
    if (n_drafts == 0) c->plain_at[rows] = c->steps, c->n_plain[rows]++;
}

void engine_set_draft_hook(struct weft_engine *x, void (*hook)(void *arg, struct weft_request *r, int32_t *drafts, int n),
                           void *arg) {
    x->draft_hook = hook, x->draft_hook_arg = arg;
}

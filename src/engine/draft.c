/* The list of drafters and the control of how long drafts are.
 *
 * A draft of k tokens costs the drafter's time and k more rows in the step; it brings p1 + p1 p2 + ... more tokens, p_d being the
 * chance that draft d is kept once those before it were. The control keeps running means of p_d for each request, and of what a
 * row and a guess cost for the engine, and lengthens a draft as long as the next token brings more than the time it takes would
 * bring without it. Times are processor times of the stepping thread, which does its share of every step: what other programs do
 * at the moment is not held against drafts.
 *
 * That is a forecast. What bounds the loss is an account: each request may lose a small part (ALLOWED) of what it would take without drafts,
 * and what its drafts won. A draft is made when the account would stand it that all of it is rejected, so that tries come
 * early in an answer, follow each other at once where they succeed, and are rare where they fail. The account counts in tokens,
 * which are steps without drafts divided by the requests in them. */
#include "engine/draft.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static const struct drafter *const drafters[] = {&draft_mtp, &draft_ngram, &draft_model, NULL};

enum {
    MOST_ROWS = 64,
    FIRST_PAUSE = 16, LONGEST_PAUSE = 256, /* tokens */
    PLAIN_STEPS = 4,                      /* steps without drafts that are timed at first */
    PLAIN_OFTEN = 12, PLAIN_AGE = 48,     /* after how many it is done again: the first are slower than those to come */
    FORGOTTEN = 100,                      /* steps after which a time is not believed any more */
    FIRST_TOKENS = 6,                     /* an answer's first tokens are the hardest to guess */
    TRIED_ENOUGH = 2, FIRST_LENGTH = 1,   /* drafts of a new request are short until so many were judged */
    STRETCH_EVERY = 12,
    LENT_TOKENS = 44, MOST_LENT = 128,    /* the account opens with what so many tokens will bring it */
    WARM_GUESSES = 2,                     /* when an engine opens; the last one is believed */
    READ_ANYWAY = 8,                      /* one request in so many has its prompt read by a drafter that does not pay */
};
/* Below this chance the first draft never pays: it costs a row and a run of the drafter, a seventh of a step at the least. */
static const double HOPELESS = 0.2;
/* What a request may lose, of the time it would take without drafts. */
static const double ALLOWED = 0.015;

/* step_ms[n]: a step of n rows of decoding requests and nothing else. */
struct draft_control {
    double step_ms[MOST_ROWS + 1];
    long steps;                       /* so far */
    long seen_at[MOST_ROWS + 1], plain_at[MOST_ROWS + 1]; /* the last one of so many rows, and the last without drafts */
    int n_plain[MOST_ROWS + 1], turns, n_started;
    double guess_ms;                  /* of one request */
    double lent;                      /* tokens: what short answers came to lately */
    double kept[WEFT_DRAFT_MAX];      /* over all requests: where a new one begins */
    int seen[WEFT_DRAFT_MAX];
};

struct draft_state {
    void *data;                       /* the drafter's own */
    double kept[WEFT_DRAFT_MAX];      /* chance that draft d is kept once the ones before were */
    int seen[WEFT_DRAFT_MAX];         /* drafts that it was learnt from */
    int pause, next_pause;            /* tokens until the next try; how long the pause after it */
    int reads_prompt;
    double account;                   /* tokens that it may still lose */
    double lent;                      /* tokens that it opened with, of the answer */
    double drafting_ms; int accepted; /* of the present step */
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
    for (int d = 0; d < WEFT_DRAFT_MAX; d++) x->control->kept[d] = 0.8;
    x->control->lent = LENT_TOKENS;
    int code = x->drafter->open ? x->drafter->open(x, e) : 0;
    if (code) x->drafter = NULL;
    else cache_warm_undo(x->cache);
    for (int i = 0; i < WARM_GUESSES && !code && x->drafter->warm; i++) {
        double begin = clock_work_ms();
        code = x->drafter->warm(x, e);
        x->control->guess_ms = clock_work_ms() - begin;
    }
    return code;
}

void draft_close(struct weft_engine *x) {
    if (x->drafter && x->drafter->close) x->drafter->close(x);
    mem_free(x->control);
    x->drafter = NULL, x->control = NULL;
}

/* Was seen, and lately: a step that something disturbed must not be believed for ever. */
static int is_known(const struct draft_control *c, int n) { return c->step_ms[n] > 0 && c->steps - c->seen_at[n] <= FORGOTTEN; }

static double likely_ms(const struct draft_control *c, int n) {
    int below = n, above = n;
    while (below > 0 && !is_known(c, below)) below--;
    while (above <= MOST_ROWS && !is_known(c, above)) above++;
    if (above == n) return c->step_ms[n];
    if (below > 0 && above <= MOST_ROWS)
        return c->step_ms[below] + (c->step_ms[above] - c->step_ms[below]) * (n - below) / (above - below);
    if (below > 0) return c->step_ms[below] * (1 + 0.1 * (n - below)); /* a guess, soon replaced by what is seen */
    return above <= MOST_ROWS ? c->step_ms[above] : 0;
}

/* What a step of n rows takes, by the nearest sizes that were seen: no more than larger ones. 0: nothing was seen. */
static double step_ms(const struct draft_control *c, int n) {
    if (n > MOST_ROWS) n = MOST_ROWS;
    double ms = likely_ms(c, n);
    for (int above = n + 1; above <= MOST_ROWS; above++)
        if (is_known(c, above) && c->step_ms[above] < ms) ms = c->step_ms[above];
    return ms;
}

/* What a draft of n, and `behind` guesses of catching up, take beside a step of `rows` rows. */
static double extra_ms(const struct weft_engine *x, int rows, int n, double behind) {
    const struct draft_control *c = x->control;
    return step_ms(c, rows + n) - step_ms(c, rows) + c->guess_ms * (n + behind);
}

/* The length that gives the most tokens for the time, with `rows` rows in the step besides. */
static int best_length(const struct weft_engine *x, const struct draft_state *s, int rows) {
    double plain = step_ms(x->control, rows);
    int max = s->seen[0] < TRIED_ENOUGH && x->o.draft_max > FIRST_LENGTH ? FIRST_LENGTH : x->o.draft_max;
    if (s->seen[0] >= TRIED_ENOUGH && s->kept[0] < HOPELESS) return 0;
    double won = 0, chance = 1, best_rate = rows / plain;
    int best = 0;
    for (int d = 1; d <= max; d++) {
        chance *= s->kept[d - 1];
        won += chance;
        /* the other requests get their tokens later for it: what counts is the step's tokens by its time */
        double rate = (rows + won) / (plain + extra_ms(x, rows, d, 0));
        if (rate > best_rate) best_rate = rate, best = d;
    }
    return best;
}

int draft_spare_rows(const struct weft_engine *x) { return x->drafter ? x->o.draft_max + 1 : 0; }

int draft_start(struct weft_request *r, struct weft_error *e) {
    struct weft_engine *x = r->engine;
    if (!x->drafter || r->o.without_draft || r->max_tokens < 2) return 0;
    struct draft_state *s = arena_new(&r->arena, 1, sizeof *s);
    if (!s) return error_memory(e, "the request");
    for (int d = 0; d < WEFT_DRAFT_MAX; d++) s->kept[d] = x->control->kept[d];
    s->next_pause = FIRST_PAUSE;
    s->lent = r->max_tokens < x->control->lent ? r->max_tokens : x->control->lent;
    s->account = ALLOWED * s->lent;
    s->reads_prompt = x->o.draft_always || x->control->n_started++ % READ_ANYWAY == 0 || best_length(x, s, 1) > 0;
    r->draft = s;
    int code = x->drafter->start ? x->drafter->start(r, &s->data, e) : 0;
    if (code) r->draft = NULL;
    return code;
}

void draft_finish(struct weft_request *r) {
    if (!r->draft) return;
    if (r->engine->drafter->finish) r->engine->drafter->finish(r, r->draft->data);
    double *lent = &r->engine->control->lent, n = r->n_generated < MOST_LENT ? r->n_generated : MOST_LENT;
    if (n > 0) *lent += (n < *lent ? 1 : 0.1) * (n - *lent);
    r->draft = NULL;
}

void *draft_data(const struct weft_request *r) { return r->draft ? r->draft->data : NULL; }

int draft_sees_hidden(const struct weft_request *r, int end) {
    return r->draft && end > r->n_prompt - r->engine->drafter->wants_hidden;
}

/* Now and then one more than seems best, so that a time that something disturbed is measured again. */
static int stretch(struct draft_control *c, const struct draft_state *s, int n, int max) {
    return n > 0 && n < max && s->kept[n] > 0.5 && ++c->turns % STRETCH_EVERY == 0 ? n + 1 : n;
}

/* What a step takes without drafts has to be known, and known anew from time to time, before anything can be said about them. */
static int wants_plain(const struct draft_control *c, int rows) {
    if (rows > MOST_ROWS) return 0;
    int age = c->n_plain[rows] < 2 * PLAIN_STEPS ? PLAIN_OFTEN : PLAIN_AGE;
    return c->n_plain[rows] < PLAIN_STEPS || c->steps - c->plain_at[rows] > age;
}

static double behind_by(const struct weft_request *r) {
    return r->engine->drafter->behind ? r->engine->drafter->behind(r) : 0;
}

/* The most of n that the account would stand. */
static int affordable(const struct weft_request *r, int rows, int n) {
    const struct weft_engine *x = r->engine;
    double behind = behind_by(r), most_ms = r->draft->account * step_ms(x->control, rows) / rows;
    while (n > 0 && extra_ms(x, rows, n, behind) > most_ms) n--;
    return n;
}

int draft_wanted(struct weft_request *r) {
    struct weft_engine *x = r->engine;
    struct draft_state *s = r->draft;
    if (!s) return 0;
    if (x->o.draft_always) return x->o.draft_max;
    if (s->pause > 0 || r->n_generated < FIRST_TOKENS) return 0;
    int decoding = 0;
    for (int i = 0; i < x->n_running; i++) decoding += x->running[i]->started_answer;
    if (wants_plain(x->control, decoding)) return 0;
    int n = stretch(x->control, s, best_length(x, s, decoding), x->o.draft_max), pays = n > 0;
    n = affordable(r, decoding, pays ? n : 1);
    if (pays) {
        s->next_pause = FIRST_PAUSE;
    } else if (n > 0) { /* it does not pay: one short try, then a pause twice as long as the last */
        s->pause = s->next_pause;
        if (s->next_pause < LONGEST_PAUSE) s->next_pause *= 2;
    }
    return n;
}

int draft_read(struct weft_engine *x, struct weft_error *e) {
    int code = 0;
    if (!x->drafter || !x->drafter->read) return 0;
    for (int i = 0; i < x->n_running && !code; i++) {
        struct weft_request *r = x->running[i];
        if (!r->started_answer && r->draft && r->draft->reads_prompt)
            code = x->drafter->read(r, sequence_rows(r->seq) + x->items[i].n_rows, e);
    }
    return code;
}

int draft_run(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e) {
    double begin = clock_work_ms(), guesses = 0;
    for (int i = 0; i < n; i++) guesses += r[i]->n_drafts + behind_by(r[i]);
    int code = x->drafter->draft(x, r, n, e);
    double ms = clock_work_ms() - begin;
    blend(&x->control->guess_ms, ms / guesses);
    for (int i = 0; i < n; i++) r[i]->draft->drafting_ms = ms / n;
    for (int i = 0; !code && x->draft_hook && i < n; i++) x->draft_hook(x->draft_hook_arg, r[i], r[i]->drafts, r[i]->n_drafts);
    return code;
}

/* The first few count most. */
static void learn(double *chance, int *seen, double least_weight, int kept) {
    double weight = 1.0 / (4 + (*seen)++);
    *chance += (weight > least_weight ? weight : least_weight) * (kept - *chance);
}

void draft_learn(struct weft_request *r, int drafted, int accepted) {
    struct weft_engine *x = r->engine;
    struct draft_state *s = r->draft;
    if (!s) return;
    if (!drafted && s->pause > 0) s->pause--;
    s->accepted = accepted;
    for (int d = 0; d < drafted; d++) {
        r->result.drafted[d]++, x->stats.drafted[d]++;
        if (d < accepted) r->result.accepted[d]++, x->stats.accepted[d]++;
        if (d > accepted) continue; /* nobody looked at it */
        learn(&s->kept[d], &s->seen[d], 0.08, d < accepted);
        learn(&x->control->kept[d], &x->control->seen[d], 0.02, d < accepted);
    }
}

static void clock_step(struct draft_control *c, int rows, int n_drafts, double ms) {
    c->steps++;
    if (is_known(c, rows)) blend(&c->step_ms[rows], ms);
    else c->step_ms[rows] = ms;
    c->seen_at[rows] = c->steps;
    if (n_drafts == 0) c->plain_at[rows] = c->steps, c->n_plain[rows]++;
}

void draft_account(struct weft_engine *x, int rows, int n_drafts, double ms) {
    struct draft_control *c = x->control;
    if (!c || rows < 1) return;
    if (ms > 0 && rows <= MOST_ROWS) clock_step(c, rows, n_drafts, ms);
    double plain = step_ms(c, rows - n_drafts), token = plain / (rows - n_drafts);
    /* among a prompt's rows what the drafts' took cannot be told */
    double checking = n_drafts ? (ms > 0 ? ms : step_ms(c, rows)) - plain : 0;
    for (int i = 0; i < x->n_running; i++) {
        struct weft_request *r = x->running[i];
        struct draft_state *s = r->draft;
        if (!s || !r->started_answer) continue;
        double cost_ms = s->drafting_ms + (n_drafts ? checking * r->n_drafts / n_drafts : 0);
        if (r->n_generated > s->lent) s->account += ALLOWED * (1 + s->accepted);
        if (token > 0) s->account += s->accepted - cost_ms / token;
        s->drafting_ms = s->accepted = 0;
    }
}

void engine_set_draft_hook(struct weft_engine *x, void (*hook)(void *arg, struct weft_request *r, int32_t *drafts, int n),
                           void *arg) {
    x->draft_hook = hook, x->draft_hook_arg = arg;
}

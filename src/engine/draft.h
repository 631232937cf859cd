/* Drafting: guesses at the next tokens, checked by the main model in one step. What is drawn never depends on the guesses.
 *
 * A drafter is a row in draft.c's list. For a request that is to draft, the engine calls
 *     start    when it begins; finish when it ends
 *     read     for each step with rows of its prompt, before it: they are about to be run up to row `end`
 *     saw      for each main step, after its commit: the request's new rows and their final hidden rows
 *     draft    once for each main step, before it: fills r->drafts, at most r->n_drafts of them, and lowers r->n_drafts
 * and the control decides how long drafts may be (draft_wanted), from acceptance and what they were seen to cost. */
#ifndef ENGINE_DRAFT_H
#define ENGINE_DRAFT_H
#include "engine/inside.h"

struct drafter {
    const char *name;
    int wants_hidden; /* of so many rows, the newest, it wants the hidden rows */
    int (*open)(struct weft_engine *x, struct weft_error *e);
    void (*close)(struct weft_engine *x);
    int (*warm)(struct weft_engine *x, struct weft_error *e); /* a guess for nobody: fetches weights, and can be timed */
    int (*start)(struct weft_request *r, void **data, struct weft_error *e); /* *data comes back from draft_data */
    void (*finish)(struct weft_request *r, void *data);
    int (*read)(struct weft_request *r, int end, struct weft_error *e);
    void (*saw)(struct weft_request *r, int first_row, int n_rows, const float *hidden); /* hidden [n_rows][hidden] or NULL */
    double (*behind)(const struct weft_request *r); /* rows to catch up with first, by their time in guesses; NULL: never any */
    int (*draft)(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e);
};
extern const struct drafter draft_mtp, draft_ngram, draft_model;

int draft_open(struct weft_engine *x, struct weft_error *e);     /* by x->o.draft */
void draft_close(struct weft_engine *x);
int draft_start(struct weft_request *r, struct weft_error *e);
void draft_finish(struct weft_request *r);
/* Of a step whose rows of r end before row `end`. */
int draft_sees_hidden(const struct weft_request *r, int end);

void *draft_data(const struct weft_request *r);

/* How long a draft would pay now and may be; 0: none. */
int draft_wanted(struct weft_request *r);
/* The planned step's prompt rows are about to be run. */
int draft_read(struct weft_engine *x, struct weft_error *e);
int draft_run(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e);
/* A token was drawn where `drafted` were guessed: `accepted` of them are the answer's. */
void draft_learn(struct weft_request *r, int drafted, int accepted);
/* After the step: `rows` of decoding requests, n_drafts drafts among them, took so many ms; ms 0: there were other rows too. */
void draft_account(struct weft_engine *x, int rows, int n_drafts, double ms);

/* Rows that a request may have beyond its known tokens. */
int draft_spare_rows(const struct weft_engine *x);

/* Tests: called with each draft before it is used, and may change it. */
void engine_set_draft_hook(struct weft_engine *x, void (*hook)(void *arg, struct weft_request *r, int32_t *drafts, int n),
                           void *arg);
#endif

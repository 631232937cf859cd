/* Drafting: guesses at the next tokens, checked by the main model in one step. What is drawn never depends on the guesses.
 *
 * A drafter is a row in draft.c's list. For a request that is to draft, the engine calls
 *     start    when it begins; finish when it ends
 *     saw      for each main step, before its commit: the request's new rows and their final hidden rows
 *     settle   once for each main step, after its commit: work on what was seen
 *     draft    once for each main step, before it: fills r->drafts, at most r->n_drafts of them, and lowers r->n_drafts
 * and the control decides how long drafts should be (draft_wanted), from acceptance and the clock. */
#ifndef ENGINE_DRAFT_H
#define ENGINE_DRAFT_H
#include "engine/inside.h"

struct drafter {
    const char *name;
    int wants_hidden;
    int (*open)(struct weft_engine *x, struct weft_error *e);
    void (*close)(struct weft_engine *x);
    int (*start)(struct weft_request *r, void **data, struct weft_error *e); /* *data comes back from draft_data */
    void (*finish)(struct weft_request *r, void *data);
    void (*saw)(struct weft_request *r, int first_row, int n_rows, const float *hidden); /* hidden [n_rows][hidden] or NULL */
    int (*settle)(struct weft_engine *x, struct weft_error *e);
    int (*draft)(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e);
};
extern const struct drafter draft_mtp, draft_ngram, draft_model;

int draft_open(struct weft_engine *x, struct weft_error *e);     /* by x->o.draft */
void draft_close(struct weft_engine *x);
int draft_start(struct weft_request *r, struct weft_error *e);
void draft_finish(struct weft_request *r);
int draft_sees_hidden(const struct weft_request *r);

void *draft_data(const struct weft_request *r);

/* How long a draft would pay now; 0: none. */
int draft_wanted(struct weft_request *r);
/* It did not pay and waits for its next try. */
int draft_is_resting(const struct weft_request *r);
/* So many tokens were drawn without. */
void draft_paused(struct weft_request *r, int n_tokens);
int draft_run(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e);
/* What became of a draft: `accepted` of `drafted` were drawn. */
void draft_learn(struct weft_request *r, int drafted, int accepted);
/* What a step of nothing but decoding requests took: rows in all, drafts among them. */
void draft_clock(struct weft_engine *x, int rows, int n_drafts, double ms);

/* Rows that a request may have beyond its known tokens. */
int draft_spare_rows(const struct weft_engine *x);

/* Tests: called with each draft before it is used, and may change it. */
void engine_set_draft_hook(struct weft_engine *x, void (*hook)(void *arg, struct weft_request *r, int32_t *drafts, int n),
                           void *arg);
#endif

/* A text run through the model for its own sake: logits of every row, taps, likelihoods, the MTP head teacher-forced.
 * The rows go through the same steps as any request's. One thread at a time, like everything that takes an engine. */
#ifndef ENGINE_SCORE_H
#define ENGINE_SCORE_H
#include "weft.h"

struct score_input {
    const int32_t *tokens; int n_tokens;   /* [n]; -1 - j: row j of `embeddings` */
    const float *embeddings; int n_embeddings; /* [n_embeddings][hidden] */
    const int32_t *positions; int n_axes;  /* [n_axes][n_tokens], or NULL */
    const int *chunks; int n_chunks;       /* rows of each step, the last repeated as needed; NULL: as many as a step takes */
    const int *taps; int n_taps;           /* layers, ascending */
    const struct weft_adapter_use *adapters; int n_adapters;
    int first_row;                         /* score_mtp_agreement: rows before this one do not count */
    const char *session, *session_save; /* score_run: files. The rows go behind those of the first; the second is written last */
};

/* Rows [row0, row0 + n_rows) of the input, valid during the call. */
struct score_rows {
    int row0, n_rows;
    const float *logits;                   /* [n_rows][vocab]; NULL in a call that brings taps or hidden rows */
    const float *hidden;                   /* [n_rows][hidden], after the final norm; NULL with logits */
    const float *const *taps;              /* [n_taps] of [n_rows][hidden]; NULL with logits */
};
typedef int score_fn(void *arg, const struct score_rows *rows, struct weft_error *e);

/* Calls `fn` for ascending rows, hidden rows and taps of a step first, then its logits in pieces. Stops at fn's first error. */
int score_run(struct weft_engine *engine, const struct score_input *in, score_fn *fn, void *arg, struct weft_error *e);

/* The MTP head, teacher-forced: `fn` gets logits of rows 0 .. n_tokens - 2; row t predicts token t + 2. No embeddings. */
int score_mtp(struct weft_engine *engine, const struct score_input *in, score_fn *fn, void *arg, struct weft_error *e);

/* -log p(token t + 1 | tokens 0..t) of rows 0 .. n_tokens - 2, in nats; fp64 sums. out [n_tokens - 1]. */
int score_nll(struct weft_engine *engine, const struct score_input *in, double *out, struct weft_error *e);

/* log sum exp of n logits, fp64 in a fixed order. */
double score_logsumexp(const float *logits, int n);

/* How often draft d (index d - 1) equals the main model's choice at its place; kept: only rows whose drafts 1..d-1 equal the
 * text. Counts are added to. */
struct score_agreement {
    int64_t rows[WEFT_DRAFT_MAX], agree[WEFT_DRAFT_MAX], kept_rows[WEFT_DRAFT_MAX], kept_agree[WEFT_DRAFT_MAX];
};
/* Chains of `depth` drafts from every row: depth 1 teacher-forced, deeper ones from the head's own rows (position t + d - 1,
 * attending to the teacher-forced rows 0..t and the chain's own). */
int score_mtp_agreement(struct weft_engine *engine, const struct score_input *in, int depth, struct score_agreement *out,
                        struct weft_error *e);
#endif

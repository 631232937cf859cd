/* From logits to a token, in the order that weft.h states at struct weft_sampling.
 *
 * Invariants
 * 1. The token depends on the logits, the context and (seed, position) alone; rank is by value, ties go to the lowest id.
 * 2. Sums run over fixed blocks, merged in order, so that threads do not show.
 * 3. sampler_pick allocates nothing. */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H
#include "base/error.h"
#include "base/pool.h"
#include "weft.h"

struct sampler; /* scratch for one vocabulary, used by one thread at a time */
int sampler_new(struct sampler **out, int vocab, struct pool *pool, struct weft_error *e); /* pool: borrowed; NULL: none */
void sampler_free(struct sampler *s);

/* WEFT_ERROR_INPUT for values out of range and biases outside the vocabulary. */
int sampling_check(const struct weft_sampling *o, int vocab, struct weft_error *e);

struct sampler_input {
    const float *logits;                 /* [vocab], not changed */
    const struct weft_sampling *o;
    const int32_t *context; int n_context; /* tokens before the one to be drawn; negative ones (embedding rows) do not count */
    uint64_t position;                   /* row number of the token to be drawn */
    const int32_t *keep; int n_keep;     /* tokens that xtc never drops: newline and end tokens */
    int n_top;                           /* likeliest tokens wanted in `top`; < 0: no logprobs at all */
    struct weft_logprob *top;            /* out [min(n_top, vocab)], descending */
};
struct sampler_output { int32_t token; float logprob; int n_top; };
/* WEFT_ERROR_NUMERIC when a logit is NaN or infinite. */
int sampler_pick(struct sampler *s, const struct sampler_input *in, struct sampler_output *out, struct weft_error *e);

/* The largest, lowest id on ties; -1 when a logit is NaN or infinite. */
int32_t sampler_argmax(const float *logits, int vocab);
#endif

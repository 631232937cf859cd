/* From logits to a token, in the order that weft.h states at struct weft_sampling.
 *
 * Invariants
 * 1. The token depends on the logits, the context and (seed, position) alone; ties go to the lowest id everywhere.
 * 2. Sums run in a fixed order in fp64 or in fixed blocks.
 * 3. sampler_pick allocates nothing. */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H
#include "base/error.h"
#include "weft.h"

struct sampler; /* scratch for one vocabulary, used by one thread at a time */
int sampler_new(struct sampler **out, int vocab, struct weft_error *e);
void sampler_free(struct sampler *s);

/* WEFT_ERROR_INPUT for values out of range and biases outside the vocabulary. */
int sampling_check(const struct weft_sampling *o, int vocab, struct weft_error *e);

struct sampler_input {
    const float *logits;                 /* [vocab], not changed */
    const struct weft_sampling *o;
    const int32_t *context; int n_context; /* tokens before the one to be drawn; embeddings rows are negative and skipped */
    uint64_t position;                   /* row number of the token to be drawn */
    const int32_t *keep; int n_keep;     /* tokens that xtc never drops: newline and end tokens */
    int n_top;                           /* top logprobs wanted; < 0: no logprobs at all */
    struct weft_logprob *top;            /* out [min(n_top, vocab)], descending */
};
struct sampler_output { int32_t token; float logprob; int n_top; };
/* WEFT_ERROR_NUMERIC when a logit is NaN or infinite. -inf is neither: it stands for a token that is masked out. */
int sampler_pick(struct sampler *s, const struct sampler_input *in, struct sampler_output *out, struct weft_error *e);

/* The largest, lowest id on ties; -1 when a logit is NaN or +inf, or none is finite. */
int32_t sampler_argmax(const float *logits, int vocab);
#endif

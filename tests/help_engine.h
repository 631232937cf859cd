/* Requests to the bundled model, with everything that came of them kept. */
#ifndef HELP_ENGINE_H
#define HELP_ENGINE_H
#include "help_test.h"

enum { KEPT_TOKENS = 256, KEPT_BYTES = 4096 };

struct kept {
    int32_t tokens[KEPT_TOKENS];
    float logprobs[KEPT_TOKENS];
    struct weft_logprob top[KEPT_TOKENS][2];
    int n; /* of TOKEN events */
    char text[KEPT_BYTES], reasoning[KEPT_BYTES], calls[KEPT_BYTES];
    struct weft_result result;     /* tokens: of the result, copied */
    int32_t result_tokens[KEPT_TOKENS];
    int done, n_progress;
    int cancel_at;                 /* > 0: the callback cancels at this token */
};

/* models/tiny, opened once for the program; the step takes max_rows rows. */
struct weft_model *kept_model(void);
/* An engine over it; opening must succeed. */
struct weft_engine *kept_engine(const struct weft_engine_options *o);
/* A chat without thinking, temperature 0, tokens and two logprobs wanted. */
struct weft_request_options kept_ask(const char *messages);
/* Submits n requests together and steps until all are done. Submission must succeed. */
void kept_run(struct weft_engine *x, const struct weft_request_options *o, struct kept *out, int n);
/* The same tokens with the same bits of logprobs, the same text, the same end. */
void kept_equal(const struct kept *a, const struct kept *b);
/* A user message of about n_words words, as messages JSON in a static buffer of its own; `code` is told in it and asked for. */
const char *kept_long_message(int n_words, const char *code);
#endif

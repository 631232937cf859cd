/* Runs of a model for tests: prompts cut as asked, all logits kept. */
#ifndef HELP_MODEL_H
#define HELP_MODEL_H
#include "help_test.h"

#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "model/model.h"

struct runner { struct model *model; struct cache *cache; int vocab, hidden; };

/* Opens with room for 2048 rows and as many logits; fails the test when it cannot. isa NULL: the default. */
void runner_open(struct runner *r, const char *folder, const char *isa, enum precision precision, int n_threads);
void runner_close(struct runner *r);

/* One sequence's rows for a step that may be cut. */
struct prompt { const int32_t *tokens; int n; const int32_t *positions; int n_axes; const int *cuts; int n_cuts; };
/* Logits of every row [n][vocab] (mem_free). `cuts` are chunk sizes, the last repeated as needed; none: whole. */
float *runner_logits(struct runner *r, const struct prompt *p);
/* The same with residual rows after every layer: taps [n_layers][n][hidden] (mem_free). */
float *runner_logits_taps(struct runner *r, const struct prompt *p, float **taps);
/* MTP logits [n - 1][vocab], teacher forced; the main rows are run first. */
float *runner_mtp(struct runner *r, const struct prompt *p);

struct sequence *runner_sequence(struct runner *r);
/* One step of whole groups; commits everything. */
void runner_step(struct runner *r, struct batch *b);

/* Names of the ISAs that run on this machine; NULL-terminated. */
const char *const *runner_isas(void);
double relative_error(const float *x, const float *want, size_t n);
/* Floats or int32 of a golden, in place of a copy (mem_free). */
float *golden_floats(const struct safetensors *s, const char *name, size_t *n);
int32_t *golden_ints(const struct safetensors *s, const char *name, size_t *n);
#endif

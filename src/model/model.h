/* A model made ready to run: weights, the plan, the one forward, the MTP head.
 * A model is used by one thread at a time (its pool makes it parallel). */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H
#include <stdio.h>

#include "backend/backend.h"
#include "cache/cache.h"
#include "checkpoint/folder.h"
#include "lora/adapter.h"

struct model;

enum norm_override { NORM_AUTO, NORM_RAW, NORM_FOLDED };

struct model_options {
    const char *backend;        /* NULL: "cpu" */
    const char *isa;            /* NULL: by the CPU's model */
    enum precision precision;
    int n_threads;              /* <= 0: all */
    int max_rows;               /* of a step; 0: 512 */
    int max_groups;             /* 0: 64 */
    int max_logits;             /* rows with logits in a step; 0: 64 */
    int max_context;            /* rows of the longest sequence; 0: the config's */
    int without_mtp;            /* leave the MTP head out */
    int without_data;           /* structure, plan and sizes only: nothing is packed, no value is checked, no step can run */
    enum norm_override norms, mtp_norms;
    void (*progress)(void *arg, const char *what, double fraction); /* may be NULL; called from the opening thread */
    void *progress_arg;
};

int model_open(struct model **out, const char *folder, const struct model_options *o, struct weft_error *e);
void model_close(struct model *m);

const struct config *model_config(const struct model *m);
struct checkpoint *model_checkpoint(struct model *m);
struct backend *model_backend(struct model *m);
int model_has_mtp(const struct model *m);
void model_cache_shape(const struct model *m, struct cache_shape *out);
const struct model_options *model_limits(const struct model *m); /* with every 0 filled in */
/* Hash of config, tensor names, shapes and a sample of bytes: same weights, same number. */
uint64_t model_fingerprint(const struct model *m);
/* Bytes: packed or read in place weights, workspace of a step. */
struct model_bytes { size_t packed, mapped, workspace; };
void model_sizes(const struct model *m, struct model_bytes *out);
void model_print_plan(const struct model *m, FILE *f);
/* How gains are stored, in words; those of the MTP head are NULL when there is none. */
struct model_norms { const char *text, *mtp_layers, *mtp_embedding, *mtp_hidden, *mtp_final; };
void model_norms(const struct model *m, struct model_norms *out);
/* Every matrix once: projections, experts, the head, and the embedding when the head is another (with l NULL: it is only looked
 * up). Not 0 from `fn` ends it. */
typedef int model_visit_fn(void *arg, const struct weight *w, const struct linear *l);
int model_visit(const struct model *m, model_visit_fn *fn, void *arg);

/* The step between cache_begin and cache_commit. WEFT_ERROR_INPUT for token ids outside the vocabulary, checked before anything
 * runs. */
int model_forward(struct model *m, struct cache *c, struct batch *b, struct weft_error *e);
/* Logits of hidden rows (after the final norm) under a set of adapters or NULL: out [n][vocab]. n at most max_logits. */
int model_head(struct model *m, const struct adapter_set *adapters, const float *hidden, int n, float *out, struct weft_error *e);
/* Embedding rows: out [n][hidden]. */
int model_embed(struct model *m, const int32_t *tokens, int n, float *out, struct weft_error *e);

/* Every projection that an adapter may target. Ids are stable for a model. */
struct model_module {
    const char *name; /* canonical, "layers.3.self_attn.q_proj" */
    int n_in, n_out;
    const struct weight *weight;
    const struct linear *linear;
};
int model_modules(const struct model *m, const struct model_module **out);

/* An adapter for this model, and room for it in a step. Not while a step runs. Sets of adapters: lora/adapter.h. */
int model_adapter_open(struct adapter **out, struct model *m, const char *folder, struct weft_error *e);
void model_adapter_close(struct model *m, struct adapter *a); /* no set holds it any more; NULL is fine */
#endif

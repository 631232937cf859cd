/* Building a step's ops: products, norms and look-ups over spans of rows that run with the same adapters. Private to model/. */
#ifndef MODEL_STEP_H
#define MODEL_STEP_H
#include "model/plan.h"

/* Neighbouring rows under one set of adapters (NULL: none), and the groups that they are of. */
struct span { const struct adapter_set *set; int row0, n_rows, group0, n_groups; };
struct spans { struct span *at; int n; int adapted; /* some set is not NULL */ };

struct step {
    struct model *m;
    struct cache *c;
    struct batch *b;
    const struct config *g;
    struct workspace *ws;
    int n_rows;
    struct spans rows, logits, hidden; /* of the packed rows, and of those that were gathered for results */
};

/* One product of several over the same rows; with `accumulate` y += result. */
struct part { const struct projection *p; float *y; int64_t stride; int accumulate; };

struct op *step_op(struct step *s, enum op_kind kind, int wait);
/* Appends n rows of group `group` to the spans. */
void spans_add(struct spans *s, const struct adapter_set *set, int group, int n_rows);

/* The first n rows of `r`, as rows of another width in the same memory. */
static inline struct rows rows_resized(struct rows r, int width) {
    r.width = width, r.padded = rows_pad(width);
    return r;
}
/* Rows from row0 on. */
struct rows rows_from(struct rows r, int row0);

void step_linear(struct step *s, const struct spans *over, struct rows x, int n_parts, const struct part *parts);
void step_norm(struct step *s, const struct spans *over, const float *x, const float *gain, struct rows out);
void step_embed(struct step *s, float *out);
/* After an OP_MOE_LINEAR: low-rank parts of one of its products. x: rows, or slots with by_slot; number: 0 or 1 among the
 * products that may run together. */
struct expert_part { int target, number, by_slot, n_in, n_out; const float *x; float *y; };
void step_experts(struct step *s, int n_experts, int n_parts, const struct expert_part *parts);
/* Does some span have other values for one of n vectors of the base? */
int spans_differ(const struct spans *over, int n, const float *const *vectors);
#endif

/* Experts: who is chosen, and the sum of what they gave. */
#include <string.h>

#include "cpu/ops.h"

enum { COLUMNS = 1024 };

static int route_tasks(const struct cpu *c, const struct op *op, void *head) { return (void)c, (void)head, op->moe_route.n_rows > 0; }

/* One row: probabilities to `p`, and the top_k largest in falling order, of equal ones the first. A NaN row takes the first experts; its
 * NaN stays in the weights. */
static void choose(const struct cpu_vec *vec, const struct op_moe_route *o, int row, float *p) {
    const float *logits = o->logits + (int64_t)row * o->n_experts;
    int32_t *expert = o->expert + (int64_t)row * o->top_k;
    float *weight = o->weight + (int64_t)row * o->top_k, highest = logits[0], sum = 0.0f, kept = 0.0f;
    for (int e = 1; e < o->n_experts; e++)
        if (logits[e] > highest) highest = logits[e];
    vec->exp(logits, highest, o->n_experts, p);
    for (int e = 0; e < o->n_experts; e++) sum += p[e];
    for (int e = 0; e < o->n_experts; e++) p[e] /= sum;
    for (int e = 0, n = 0; e < o->n_experts; e++) {
        if (n == o->top_k && !(p[e] > weight[n - 1])) continue;
        int at = n < o->top_k ? n++ : n - 1;
        for (; at > 0 && p[e] > weight[at - 1]; at--) expert[at] = expert[at - 1], weight[at] = weight[at - 1];
        expert[at] = e, weight[at] = p[e];
    }
    for (int r = 0; r < o->top_k; r++) kept += weight[r];
    for (int r = 0; r < o->top_k && o->renormalise; r++) weight[r] /= kept;
}

static void route_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    (void)task;
    const struct op_moe_route *o = &op->moe_route;
    int n_pairs = o->n_rows * o->top_k;
    for (int row = 0; row < o->n_rows; row++) choose(c->isa->vec, o, row, scratch);
    int32_t *next = scratch;
    memset(o->begin, 0, (size_t)(o->n_experts + 1) * sizeof *o->begin);
    for (int i = 0; i < n_pairs; i++) o->begin[o->expert[i] + 1]++;
    for (int e = 0; e < o->n_experts; e++) {
        next[e] = o->begin[e];
        o->begin[e + 1] += o->begin[e];
    }
    for (int i = 0; i < n_pairs; i++) {
        o->slot[i] = next[o->expert[i]]++;
        o->slot_row[o->slot[i]] = i / o->top_k;
    }
}

static size_t route_scratch(const struct cpu *c, const struct step_limits *l) {
    return (void)c, (size_t)(l->n_experts + 1) * sizeof(float);
}
const struct cpu_op cpu_op_moe_route = {.n_tasks = route_tasks, .run = route_run, .scratch_bytes = route_scratch};

static int combine_parts(const struct op *op) { return (op->moe_combine.width + COLUMNS - 1) / COLUMNS; }
static int combine_tasks(const struct cpu *c, const struct op *op, void *head) {
    return (void)c, (void)head, op->moe_combine.n_rows * combine_parts(op);
}

static void combine_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_moe_combine *o = &op->moe_combine;
    const struct cpu_vec *vec = c->isa->vec;
    int parts = combine_parts(op), col0 = task % parts * COLUMNS, n = o->width - col0 < COLUMNS ? o->width - col0 : COLUMNS;
    int64_t row = task / parts;
    float *sum = scratch, *out = o->out + row * o->width + col0;
    for (int i = 0; i < n; i++) sum[i] = 0.0f;
    for (int r = 0; r < o->top_k; r++)
        vec->add_scaled(sum, o->y + (int64_t)o->slot[row * o->top_k + r] * o->width + col0, o->weight[row * o->top_k + r], n);
    vec->add_scaled(out, sum, 1.0f, n);
    if (o->shared) vec->add_scaled(out, o->shared + row * o->width + col0, vec->sigmoid(o->shared_gate[row]), n);
}

static size_t combine_scratch(const struct cpu *c, const struct step_limits *l) {
    return (void)c, (void)l, COLUMNS * sizeof(float);
}
const struct cpu_op cpu_op_moe_combine = {.n_tasks = combine_tasks, .run = combine_run, .scratch_bytes = combine_scratch};

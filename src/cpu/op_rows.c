/* Ops on rows alone: norms, silu(gate) * up, forms, copies. */
#include <math.h>
#include <string.h>

#include "cpu/ops.h"

enum { COLUMNS = 1024 }; /* of a wide row that one task takes, where columns do not depend on one another */

static int blocks_of(int n, int size) { return (n + size - 1) / size; }

/* Codes of n values from column col0 on; the padding behind the last column is cleared. */
static void put_q8(const struct cpu_vec *vec, const struct rows *out, int64_t at, int n, int pad, const float *x, int rest) {
    if (rest) at += (int64_t)out->rest_row * out->padded;
    int8_t *codes = out->q8 + at;
    float *scale = out->q8_scale + at / Q8_BLOCK, *sum = out->q8_sum + at / Q8_BLOCK;
    vec->to_q8(x, n, codes, scale, sum);
    for (int b = blocks_of(n, Q8_BLOCK); b < (n + pad) / Q8_BLOCK; b++) {
        memset(codes + b * Q8_BLOCK, 0, Q8_BLOCK);
        scale[b] = sum[b] = 0.0f;
    }
}

static void put_rest(const struct cpu_vec *vec, const struct rows *out, int64_t at, int n, int pad, const float *x) {
    enum { PIECE = 256 };
    float rest[PIECE];
    for (int i = 0; i < n; i += PIECE) {
        int m = n - i < PIECE ? n - i : PIECE;
        for (int j = 0; j < m; j++)
            rest[j] = x[i + j] - (float)out->q8[at + i + j] * out->q8_scale[(at + i + j) / Q8_BLOCK];
        put_q8(vec, out, at + i, m, i + m == n ? pad : 0, rest, 1);
    }
}

void cpu_rows_put(const struct cpu_vec *vec, const struct rows *out, int64_t row, int col0, int n, const float *x) {
    int last = col0 + n == out->width, pad = out->padded - out->width;
    if (out->forms & FORM_F32) {
        float *to = out->f32 + row * out->width + col0;
        if (to != x) memcpy(to, x, (size_t)n * sizeof *x);
    }
    if (out->forms & FORM_BF16) {
        uint16_t *to = out->bf16 + row * out->padded + col0;
        vec->to_bf16(x, n, to);
        if (last) memset(to + n, 0, (size_t)pad * sizeof *to);
    }
    int64_t at = row * out->padded + col0;
    if (out->forms & FORM_Q8) put_q8(vec, out, at, n, last ? pad : 0, x, 0);
    if (out->forms & FORM_Q8_REST) put_rest(vec, out, at, n, last ? pad : 0, x);
}

static size_t row_scratch(const struct cpu *c, const struct step_limits *l) {
    return (void)c, (size_t)rows_pad(l->max_width) * sizeof(float);
}

/* Where a result of n floats is computed: in the f32 form when that is asked for. */
static float *result_place(const struct rows *out, int64_t row, int col0, void *scratch) {
    return out->forms & FORM_F32 ? out->f32 + row * out->width + col0 : scratch;
}

static int norm_tasks(const struct cpu *c, const struct op *op, void *head) { return (void)c, (void)head, op->norm.n_rows; }

static void norm_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_norm *o = &op->norm;
    const struct cpu_vec *vec = c->isa->vec;
    int64_t row = o->row0 + task;
    int n = o->out.width;
    const float *x = o->x + row * o->x_stride;
    float *to = result_place(&o->out, row, 0, scratch);
    float mean = vec->dot(x, x, n) / (float)n;
    vec->norm(x, 1.0f / sqrtf(mean + o->eps), o->gain, NULL, n, to);
    cpu_rows_put(vec, &o->out, row, 0, n, to);
}
const struct cpu_op cpu_op_norm = {.n_tasks = norm_tasks, .run = norm_run, .scratch_bytes = row_scratch};

static int convert_tasks(const struct cpu *c, const struct op *op, void *head) {
    return (void)c, (void)head, op->convert.n_rows * blocks_of(op->convert.x.width, COLUMNS);
}

static void convert_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    (void)scratch;
    const struct op_convert *o = &op->convert;
    int parts = blocks_of(o->x.width, COLUMNS), col0 = task % parts * COLUMNS;
    int n = o->x.width - col0 < COLUMNS ? o->x.width - col0 : COLUMNS;
    int64_t row = o->row0 + task / parts;
    cpu_rows_put(c->isa->vec, &o->x, row, col0, n, o->x.f32 + row * o->x.width + col0);
}
const struct cpu_op cpu_op_convert = {.n_tasks = convert_tasks, .run = convert_run};

/* Heads of one task: about COLUMNS columns, whole blocks of 32. */
static int gated_heads(const struct op_gated_norm *o) {
    int together = cpu_heads_together(o->dim, o->n_heads), heads = COLUMNS / 2 / o->dim;
    return together > 1 ? together : heads > 1 ? heads : 1;
}
static int gated_norm_tasks(const struct cpu *c, const struct op *op, void *head) {
    return (void)c, (void)head, op->gated_norm.n_rows * blocks_of(op->gated_norm.n_heads, gated_heads(&op->gated_norm));
}

static void gated_norm_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_gated_norm *o = &op->gated_norm;
    const struct cpu_vec *vec = c->isa->vec;
    int heads = gated_heads(o), parts = blocks_of(o->n_heads, heads), head0 = task % parts * heads;
    int64_t row = task / parts;
    if (heads > o->n_heads - head0) heads = o->n_heads - head0;
    float *to = result_place(&o->out, row, head0 * o->dim, scratch);
    for (int h = 0; h < heads; h++) {
        int64_t at = (row * o->n_heads + head0 + h) * o->dim;
        float mean = vec->dot(o->x + at, o->x + at, o->dim) / (float)o->dim;
        vec->norm(o->x + at, 1.0f / sqrtf(mean + o->eps), o->gain, o->gate + at, o->dim, to + (int64_t)h * o->dim);
    }
    cpu_rows_put(vec, &o->out, row, head0 * o->dim, heads * o->dim, to);
}
const struct cpu_op cpu_op_gated_norm = {.n_tasks = gated_norm_tasks, .run = gated_norm_run, .scratch_bytes = row_scratch};

static int silu_mul_tasks(const struct cpu *c, const struct op *op, void *head) {
    return (void)c, (void)head, op->silu_mul.n_rows * blocks_of(op->silu_mul.out.width, COLUMNS);
}

static void silu_mul_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_silu_mul *o = &op->silu_mul;
    int parts = blocks_of(o->out.width, COLUMNS), col0 = task % parts * COLUMNS;
    int n = o->out.width - col0 < COLUMNS ? o->out.width - col0 : COLUMNS;
    int64_t row = task / parts, at = row * o->stride + col0;
    float *to = result_place(&o->out, row, col0, scratch);
    c->isa->vec->silu_mul(o->gate + at, o->up + at, n, to);
    cpu_rows_put(c->isa->vec, &o->out, row, col0, n, to);
}
const struct cpu_op cpu_op_silu_mul = {.n_tasks = silu_mul_tasks, .run = silu_mul_run, .scratch_bytes = row_scratch};

static int copy_tasks(const struct cpu *c, const struct op *op, void *head) { return (void)c, (void)head, op->copy.n_rows; }

static void copy_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    (void)c, (void)scratch;
    const struct op_copy *o = &op->copy;
    int64_t from = o->index ? o->index[task] : o->from0 + task;
    memcpy(o->to + task * o->to_stride, o->from + from * o->from_stride, (size_t)o->width * sizeof(float));
}
const struct cpu_op cpu_op_copy = {.n_tasks = copy_tasks, .run = copy_run};

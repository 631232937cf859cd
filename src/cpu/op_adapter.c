/* Low-rank adapters, in fp32. */
#include "cpu/ops.h"

enum { COLUMNS = 1024, RANKS = 16 }; /* of one task; every t and every y is a sum of its own */

static int down_parts(const struct op *op) { return (op->adapter.rank + RANKS - 1) / RANKS; }
static int down_tasks(const struct cpu *c, const struct op *op, void *head) { return (void)c, (void)head, op->adapter.n_rows * down_parts(op); }

static void down_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    (void)scratch;
    const struct op_adapter *o = &op->adapter;
    int parts = down_parts(op), row = task / parts, r0 = task % parts * RANKS, r1 = r0 + RANKS < o->rank ? r0 + RANKS : o->rank;
    const float *x = o->x + (o->row0 + row) * o->x_stride;
    float *t = o->t + (int64_t)row * o->rank;
    for (int r = r0; r < r1; r++) t[r] = c->isa->vec->dot(x, o->a + (int64_t)r * o->n_in, o->n_in);
}
const struct cpu_op cpu_op_adapter_down = {.n_tasks = down_tasks, .run = down_run};

static int up_parts(const struct op *op) { return (op->adapter.n_out + COLUMNS - 1) / COLUMNS; }
static int up_tasks(const struct cpu *c, const struct op *op, void *head) { return (void)c, (void)head, op->adapter.n_rows * up_parts(op); }

static void up_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_adapter *o = &op->adapter;
    const struct cpu_vec *vec = c->isa->vec;
    int parts = up_parts(op), col0 = task % parts * COLUMNS, row = task / parts;
    int n = o->n_out - col0 < COLUMNS ? o->n_out - col0 : COLUMNS;
    const float *t = o->t + (int64_t)row * o->rank;
    float *y = o->y + (o->row0 + row) * o->y_stride + col0, *sum = scratch;
    for (int i = 0; i < n; i++) sum[i] = 0.0f;
    for (int r = 0; r < o->rank; r++) vec->add_scaled(sum, o->b + (int64_t)r * o->n_out + col0, t[r], n);
    if (o->ratio)
        for (int i = 0; i < n; i++) y[i] *= o->ratio[col0 + i];
    vec->add_scaled(y, sum, o->scale, n);
    if (o->add_to) vec->add_scaled(o->add_to + (o->row0 + row) * o->add_stride + col0, y, 1.0f, n);
}

static size_t up_scratch(const struct cpu *c, const struct step_limits *l) { return (void)c, (void)l, COLUMNS * sizeof(float); }
const struct cpu_op cpu_op_adapter_up = {.n_tasks = up_tasks, .run = up_run, .scratch_bytes = up_scratch};

/* One task a slot: there are few, and each reads its expert's two matrices once. */
static int moe_tasks(const struct cpu *c, const struct op *op, void *head) { return (void)c, (void)head, op->moe_adapter.n_slots; }

static int expert_of(const int32_t *begin, int n_experts, int slot) {
    int low = 0, high = n_experts; /* begin[low] <= slot < begin[high] */
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (begin[mid] <= slot) low = mid;
        else high = mid;
    }
    return low;
}

static void moe_run(const struct cpu *c, const struct op *op, int slot, void *scratch) {
    const struct op_moe_adapter *o = &op->moe_adapter;
    const struct cpu_vec *vec = c->isa->vec;
    int row = o->slot_row[slot], expert = expert_of(o->begin, o->n_experts, slot);
    if (row < o->row0 || row >= o->row0 + o->n_rows) return;
    const float *x = o->x + (o->by_slot ? slot : row) * o->x_stride;
    const float *a = o->a + (int64_t)expert * o->rank * o->n_in, *b = o->b + (int64_t)expert * o->rank * o->n_out;
    float *t = o->t + (int64_t)slot * o->rank, *y = o->y + slot * o->y_stride, *sum = scratch;
    for (int r = 0; r < o->rank; r++) t[r] = vec->dot(x, a + (int64_t)r * o->n_in, o->n_in);
    for (int col0 = 0; col0 < o->n_out; col0 += COLUMNS) {
        int n = o->n_out - col0 < COLUMNS ? o->n_out - col0 : COLUMNS;
        for (int i = 0; i < n; i++) sum[i] = 0.0f;
        for (int r = 0; r < o->rank; r++) vec->add_scaled(sum, b + (int64_t)r * o->n_out + col0, t[r], n);
        vec->add_scaled(y + col0, sum, o->scale, n);
    }
}
const struct cpu_op cpu_op_moe_adapter = {.n_tasks = moe_tasks, .run = moe_run, .scratch_bytes = up_scratch};

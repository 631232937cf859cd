/* Ops over weight matrices: products cut into blocks of columns (and of rows, when there are many), and the embedding.
 *
 * Columns are the outer index of a task and row blocks the inner one: a weight comes from memory once and is in cache for the
 * row blocks that follow. */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/linear_call.h"
#include "quant/quant.h"

enum {
    LEAST_COLUMNS = 64, MOST_COLUMNS = 512, /* of a task; multiples of every kernel's tile. Few rows are read as four streams of a
                                             * quarter of them each: the longer the better */
    EXPERT_COLUMNS = 128,
    FETCH_BYTES = 256 << 10, /* a part of L2 */
    ROW_BLOCK = 256, /* 256 rows of 4096 int8 values are 1 MiB: about one core's L2 */
};

static int blocks(int n, int size) { return (n + size - 1) / size; }

static int embed_tasks(const struct cpu *c, const struct op *op) { return (void)c, op->embed.n_rows; }

static void embed_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    (void)c, (void)scratch;
    const struct op_embed *o = &op->embed;
    float *out = o->out + (int64_t)task * o->width;
    int32_t token = o->tokens[task];
    if (token >= 0) weight_decode(o->table, token, out);
    else memcpy(out, o->given + (int64_t)(-1 - token) * o->width, (size_t)o->width * sizeof *out);
}

const struct cpu_op cpu_op_embed = {.n_tasks = embed_tasks, .run = embed_run};

/* Columns of a task: at least four tasks a thread, if there are as many. */
static int width(const struct cpu *c, int n_out, int n_rows) {
    int w = MOST_COLUMNS;
    while (w > LEAST_COLUMNS && n_out * blocks(n_rows, ROW_BLOCK) < w * 4 * pool_threads(c->pool)) w /= 2;
    return w;
}

/* Rows and their rests in one call, so that weights are read once. */
static void run_with_rest(struct linear_call *call, int col0, int col1) {
    enum { MOST_ROWS = 4 };
    float y[MOST_ROWS][MOST_COLUMNS];
    int32_t x_row[MOST_ROWS];
    int n = call->n_rows;
    for (int i = 0; i < n; i++) x_row[i] = (int32_t)call_row(call, i), x_row[n + i] = x_row[i] + call->x->rest_row;
    struct linear_call both = *call;
    both.n_rows = 2 * n, both.x_row = x_row, both.y = (float *)((uintptr_t)y - (size_t)col0 * sizeof **y), both.y_stride = MOST_COLUMNS, both.accumulate = 0;
    call->w->kernel[row_class(2 * n)]->run(&both, col0, col1);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < col1 - col0; j++) y[i][j] += y[n + i][j];
        call_store(call, i, col0, col1 - col0, y[i]);
    }
}

static void run_block(struct linear_call *call, int block, int columns) {
    int col0 = block * columns, col1 = col0 + columns < call->w->n_out ? col0 + columns : call->w->n_out;
    if (call->w->with_rest && 2 * call->n_rows <= row_class_limit[0]) {
        run_with_rest(call, col0, col1);
        return;
    }
    const struct linear_kernel *kernel = call->w->kernel[row_class(call->n_rows)];
    kernel->run(call, col0, col1);
    if (!call->w->with_rest) return;
    /* The weights of these columns are in cache now. */
    struct linear_call again = *call;
    again.x0 += call->x->rest_row, again.accumulate = 1;
    kernel->run(&again, col0, col1);
}

static size_t linear_scratch(const struct cpu *c, const struct step_limits *l) {
    size_t most = 0;
    int rows = l->max_rows < ROW_BLOCK ? l->max_rows : ROW_BLOCK;
    if (rows < row_class_limit[0]) rows = row_class_limit[0]; /* run_with_rest makes two rows of one */
    for (int i = 0; i < c->n_kernels; i++) {
        size_t bytes = c->kernels[i]->scratch_bytes ? c->kernels[i]->scratch_bytes(rows, l->max_width) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

static int part_blocks(const struct cpu *c, const struct op_linear *o, int p) {
    return blocks(o->part[p].w->n_out, width(c, o->part[p].w->n_out, o->n_rows));
}

/* The part that a task belongs to; *block: its block of columns there. */
static int find_part(const struct cpu *c, const struct op_linear *o, int *block) {
    int p = 0;
    for (; *block >= part_blocks(c, o, p); p++) *block -= part_blocks(c, o, p);
    return p;
}

static int linear_tasks(const struct cpu *c, const struct op *op) {
    int n = 0;
    for (int p = 0; p < op->linear.n_parts; p++) n += part_blocks(c, &op->linear, p);
    return n * blocks(op->linear.n_rows, ROW_BLOCK);
}

static void linear_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_linear *o = &op->linear;
    int row_blocks = blocks(o->n_rows, ROW_BLOCK), row0 = task % row_blocks * ROW_BLOCK, block = task / row_blocks;
    int p = find_part(c, o, &block);
    struct linear_call call = {
        .w = o->part[p].w, .x = &o->x, .x0 = o->x0 + row0, .scratch = scratch, .ahead = c->isa->ahead_bytes,
        .n_rows = o->n_rows - row0 < ROW_BLOCK ? o->n_rows - row0 : ROW_BLOCK,
        .y = o->part[p].y + row0 * o->part[p].y_stride, .y_stride = o->part[p].y_stride, .accumulate = o->part[p].accumulate,
    };
    run_block(&call, block, width(c, call.w->n_out, o->n_rows));
}

/* Few rows: the quarters of a block of columns are read side by side. */
static int linear_fetch(const struct cpu *c, const struct op *op, int task, size_t *at) {
    const struct op_linear *o = &op->linear;
    if (o->n_rows > row_class_limit[1]) return 0;
    int block = task; /* one block of rows */
    const struct linear *w = o->part[find_part(c, o, &block)].w;
    const uint8_t *from = w->data ? w->data : w->source->data;
    size_t column = (w->data ? w->data_bytes : w->source->row_bytes * (size_t)w->n_out) / (size_t)w->n_out;
    int columns = width(c, w->n_out, o->n_rows), left = w->n_out - block * columns;
    size_t quarter = (size_t)(left < columns ? left : columns) * column / 4;
    from += (size_t)block * (size_t)columns * column;
    for (int i = 0; i < 4; i++) __builtin_prefetch(from + (size_t)i * quarter + *at, 0, 2);
    *at += 64;
    return *at < quarter && *at < FETCH_BYTES / 4;
}

const struct cpu_op cpu_op_linear = {.n_tasks = linear_tasks, .run = linear_run, .scratch_bytes = linear_scratch, .fetch = linear_fetch};

/* Tasks are (expert, part, column block); experts share their shapes. */
static int moe_tasks(const struct cpu *c, const struct op *op) {
    (void)c;
    int n = 0;
    for (int p = 0; p < op->moe_linear.n_parts; p++) n += blocks(op->moe_linear.part[p].w->n_out, EXPERT_COLUMNS);
    return n * op->moe_linear.n_experts;
}

static void moe_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_moe_linear *o = &op->moe_linear;
    int per_expert = moe_tasks(c, op) / o->n_experts, expert = task / per_expert, block = task % per_expert, p = 0;
    int begin = o->begin[expert], end = o->begin[expert + 1];
    if (begin == end) return;
    for (; block >= blocks(o->part[p].w->n_out, EXPERT_COLUMNS); p++) block -= blocks(o->part[p].w->n_out, EXPERT_COLUMNS);
    for (int at = begin; at < end; at += ROW_BLOCK) {
        struct linear_call call = {
            .w = &o->part[p].w[expert], .x = &o->x, .x_row = o->slot_row ? o->slot_row + at : NULL, .x0 = at, .scratch = scratch,
            .ahead = c->isa->ahead_bytes, .n_rows = end - at < ROW_BLOCK ? end - at : ROW_BLOCK, .y = o->part[p].y + at * o->part[p].y_stride,
            .y_stride = o->part[p].y_stride,
        };
        run_block(&call, block, EXPERT_COLUMNS);
    }
}

const struct cpu_op cpu_op_moe_linear = {.n_tasks = moe_tasks, .run = moe_run, .scratch_bytes = linear_scratch};

/* Ops over weight matrices: products cut into blocks of rows, when there are many, and of columns, and the embedding.
 *
 * Blocks of rows are the outer index of a task: what a kernel makes of its inputs then serves all the columns that a thread takes. */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/linear_call.h"
#include "quant/quant.h"

enum {
    LEAST_COLUMNS = 64, MOST_COLUMNS = 512, /* of a task; multiples of every kernel's tile */
    EXPERT_COLUMNS = 128,
    FETCH_BYTES = 256 << 10, /* a part of L2 */
    ROW_BLOCK = 256, ROW_BYTES = 1 << 20, /* rows of a task: so many, or as many as have so many inputs; about one core's L2 */
};

static int blocks(int n, int size) { return (n + size - 1) / size; }

/* Rows of a task: all, or even parts of no more than ROW_BLOCK and ROW_BYTES, multiples of 16. */
static int block_rows(int n_rows, int width) {
    int most = ROW_BYTES / width / 16 * 16;
    if (most > ROW_BLOCK) most = ROW_BLOCK;
    if (most < 16) most = 16;
    return n_rows <= most ? n_rows : blocks(blocks(n_rows, blocks(n_rows, most)), 16) * 16;
}

static int embed_tasks(const struct cpu *c, const struct op *op, void *head) { return (void)c, (void)head, op->embed.n_rows; }

static void embed_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    (void)c, (void)scratch;
    const struct op_embed *o = &op->embed;
    float *out = o->out + (int64_t)task * o->width;
    int32_t token = o->tokens[task];
    if (token >= 0) weight_decode(o->table, token, out);
    else memcpy(out, o->given + (int64_t)(-1 - token) * o->width, (size_t)o->width * sizeof *out);
}

const struct cpu_op cpu_op_embed = {.n_tasks = embed_tasks, .run = embed_run};

/* How the columns of a matrix are cut into tasks: `width` of them in each; where the kernel takes streams, as many in each of four
 * streams of `apart` columns, and what does not fill the streams is the last task. At least four tasks a thread, eight without streams, if
 * there are as many: a thread's tasks are neighbours, so each stream goes on in the next. */
struct cut { int apart, width, n; };

static int takes_streams(const struct linear *w, int n_rows) {
    int n = w->with_rest && 2 * n_rows <= row_class_limit[0] ? 2 * n_rows : n_rows;
    return n <= w->kernel[row_class(n)]->stream_rows;
}

static struct cut cut_columns(const struct cpu *c, const struct linear *w, int n_rows, int most) {
    struct cut cut = {.width = most};
    int threads = pool_threads(c->pool), n_out = w->n_out;
    if (takes_streams(w, n_rows)) cut.apart = n_out / (STREAMS * STREAM_TILE) * STREAM_TILE;
    if (cut.apart) {
        int tiles = cut.apart / (STREAM_TILE * 4 * threads);
        cut.width = (tiles < 1 ? 1 : tiles) * STREAM_TILE;
        if (cut.width > most / STREAMS) cut.width = most / STREAMS;
        cut.n = blocks(cut.apart, cut.width) + (STREAMS * cut.apart < n_out);
    } else {
        int row_blocks = blocks(n_rows, block_rows(n_rows, w->n_in));
        while (cut.width > LEAST_COLUMNS && n_out * row_blocks < cut.width * 8 * threads) cut.width /= 2;
        cut.n = blocks(n_out, cut.width);
    }
    return cut;
}

/* The columns of task `block`; the apart of its call. */
static int task_columns(const struct cut *cut, int n_out, int block, int *col0, int *col1) {
    int rest = cut->apart && block * cut->width >= cut->apart, end = cut->apart && !rest ? cut->apart : n_out;
    *col0 = rest ? STREAMS * cut->apart : block * cut->width;
    *col1 = end - *col0 < cut->width || rest ? end : *col0 + cut->width;
    return rest ? 0 : cut->apart;
}

static size_t column_bytes(const struct linear *w) { return w->data ? w->data_bytes / (size_t)w->n_out : w->source->row_bytes; }
/* Where the weights of the columns from col on begin. */
static const uint8_t *columns_at(const struct linear *w, int col) {
    return (w->data ? w->data : w->source->data) + column_bytes(w) * (size_t)col;
}

/* The head of the scratch memory during an op. */
struct head {
    struct last_call { const struct linear_kernel *kernel; int group, x0, n_rows; } last;
    int rows;          /* of a block of rows; not for experts, each of which has its own */
    int n_cuts;        /* tasks of a block of rows, or of an expert */
    int nth, expert;   /* the nth expert that has rows is this one */
    struct cut cut[MAX_PARTS];
};
_Static_assert(sizeof(struct head) <= SCRATCH_HEAD, "it fits");

static void run_kernel(const struct linear_kernel *kernel, struct linear_call *call, int col0, int col1) {
    struct last_call *last = &((struct head *)(void *)((uint8_t *)call->scratch - SCRATCH_HEAD))->last;
    const int group = call->w->source->group; /* sums of inputs are laid out by groups */
    call->same_rows = last->kernel == kernel && last->group == group && last->x0 == call->x0 && last->n_rows == call->n_rows;
    *last = (struct last_call){kernel, group, call->x0, call->n_rows};
    if (!call->apart || call->n_rows <= kernel->stream_rows) {
        kernel->run(call, col0, col1);
        return;
    }
    /* Experts of few rows among those with many may have a kernel of the other kind. */
    struct linear_call one = *call;
    one.apart = 0;
    for (int s = 0; s < STREAMS; s++, one.same_rows = 1) kernel->run(&one, col0 + s * call->apart, col1 + s * call->apart);
}

/* Rows and their rests in one call, so that weights are read once. */
static void run_with_rest(struct linear_call *call, int col0, int col1) {
    enum { MOST_ROWS = 4 };
    float y[MOST_ROWS][MOST_COLUMNS];
    int32_t x_row[MOST_ROWS];
    int n = call->n_rows, columns = col1 - col0;
    for (int i = 0; i < n; i++) x_row[i] = (int32_t)call_row(call, i), x_row[n + i] = x_row[i] + call->x->rest_row;
    struct linear_call both = *call;
    both.n_rows = 2 * n, both.x_row = x_row, both.y = (float *)((uintptr_t)y - (size_t)col0 * sizeof **y), both.y_stride = MOST_COLUMNS;
    both.y_apart = columns, both.accumulate = 0;
    run_kernel(call->w->kernel[row_class(2 * n)], &both, col0, col1);
    for (int i = 0; i < n; i++)
        for (int s = 0; s < (call->apart ? STREAMS : 1); s++) {
            float *row = y[i] + s * columns;
            for (int j = 0; j < columns; j++) row[j] += y[n + i][s * columns + j];
            call_store(call, i, col0 + s * (int)call->y_apart, columns, row);
        }
}

static void run_columns(struct linear_call *call, int col0, int col1) {
    if (call->w->with_rest && 2 * call->n_rows <= row_class_limit[0]) {
        run_with_rest(call, col0, col1);
        return;
    }
    const struct linear_kernel *kernel = call->w->kernel[row_class(call->n_rows)];
    run_kernel(kernel, call, col0, col1);
    if (!call->w->with_rest) return;
    /* The weights of these columns are in cache now. */
    struct linear_call again = *call;
    again.x0 += call->x->rest_row, again.accumulate = 1;
    run_kernel(kernel, &again, col0, col1);
}

static size_t linear_scratch(const struct cpu *c, const struct step_limits *l) {
    size_t most = 0;
    for (int i = 0; i < c->n_kernels; i++) {
        if (!c->kernels[i]->scratch_bytes) continue;
        /* Many narrow rows or few wide ones: whichever needs more. run_with_rest makes two rows of one. */
        for (int width = ROW_BYTES / ROW_BLOCK < l->max_width ? ROW_BYTES / ROW_BLOCK : l->max_width;; width = 2 * width < l->max_width ? 2 * width : l->max_width) {
            int rows = block_rows(l->max_rows, width / 2 + 1);
            size_t bytes = c->kernels[i]->scratch_bytes(rows < row_class_limit[0] ? row_class_limit[0] : rows, width);
            if (bytes > most) most = bytes;
            if (width == l->max_width) break;
        }
    }
    return SCRATCH_HEAD + most;
}

static void add_cut(struct head *h, int part, struct cut cut) { h->cut[part] = cut, h->n_cuts += cut.n; }

/* The part that a task of the head's cuts belongs to; *block: which task of it. */
static int find_part(const struct head *h, int *block) {
    int p = 0;
    for (; *block >= h->cut[p].n; p++) *block -= h->cut[p].n;
    return p;
}

static int linear_tasks(const struct cpu *c, const struct op *op, void *head) {
    const struct op_linear *o = &op->linear;
    struct head *h = head;
    *h = (struct head){.rows = block_rows(o->n_rows, o->x.width)};
    for (int p = 0; p < o->n_parts; p++) add_cut(h, p, cut_columns(c, o->part[p].w, o->n_rows, MOST_COLUMNS));
    return h->n_cuts * blocks(o->n_rows, h->rows);
}

static void linear_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_linear *o = &op->linear;
    const struct head *h = scratch;
    int row0 = task / h->n_cuts * h->rows, block = task % h->n_cuts, col0, col1, p = find_part(h, &block);
    struct linear_call call = {
        .w = o->part[p].w, .x = &o->x, .x0 = o->x0 + row0, .scratch = (uint8_t *)scratch + SCRATCH_HEAD, .ahead = c->isa->ahead,
        .n_rows = o->n_rows - row0 < h->rows ? o->n_rows - row0 : h->rows,
        .y = o->part[p].y + row0 * o->part[p].y_stride, .y_stride = o->part[p].y_stride, .accumulate = o->part[p].accumulate,
    };
    call.y_apart = call.apart = task_columns(&h->cut[p], call.w->n_out, block, &col0, &col1);
    run_columns(&call, col0, col1);
}

/* Few rows: the streams that a thread begins with. */
static int linear_fetch(const struct op *op, const void *head, int task, size_t *at) {
    const struct op_linear *o = &op->linear;
    const struct head *h = head;
    int block = task, col0, col1;
    if (o->n_rows > row_class_limit[1]) return 0;
    const int p = find_part(h, &block);
    const struct linear *w = o->part[p].w;
    int apart = task_columns(&h->cut[p], w->n_out, block, &col0, &col1);
    const uint8_t *from = columns_at(w, col0);
    const size_t column = column_bytes(w), left = (size_t)((apart ? apart : w->n_out) - col0) * column;
    for (int i = 0; i < (apart ? STREAMS : 1); i++) __builtin_prefetch(from + (size_t)(i * apart) * column + *at, 0, 2);
    *at += 64;
    return *at < left && *at < FETCH_BYTES / STREAMS;
}

const struct cpu_op cpu_op_linear = {.n_tasks = linear_tasks, .run = linear_run, .scratch_bytes = linear_scratch, .fetch = linear_fetch};

static int expert_rows(const struct op_moe_linear *o, int expert) { return o->begin[expert + 1] - o->begin[expert]; }

/* Tasks are (expert with rows, part, columns); experts share their shapes. */
static int moe_tasks(const struct cpu *c, const struct op *op, void *head) {
    const struct op_moe_linear *o = &op->moe_linear;
    struct head *h = head;
    int used = 0, most_rows = 0;
    *h = (struct head){.nth = -1, .expert = -1};
    for (int i = 0; i < o->n_experts; i++) {
        int rows = expert_rows(o, i);
        if (rows > most_rows) most_rows = rows;
        used += rows > 0;
    }
    for (int p = 0; p < o->n_parts; p++) add_cut(h, p, cut_columns(c, o->part[p].w, most_rows, EXPERT_COLUMNS));
    return used * h->n_cuts;
}

/* The nth expert that has rows: most often the one of the last task, or the next. */
static int used_expert(const struct op_moe_linear *o, struct head *h, int nth) {
    if (nth < h->nth) h->nth = h->expert = -1;
    for (; h->nth < nth; h->nth++)
        do h->expert++;
        while (expert_rows(o, h->expert) == 0);
    return h->expert;
}

struct expert_task { const struct linear *w; int expert, part, apart, col0, col1; };

static struct expert_task find_expert_task(const struct op_moe_linear *o, struct head *h, int task) {
    int block = task % h->n_cuts;
    struct expert_task t = {.expert = used_expert(o, h, task / h->n_cuts), .part = find_part(h, &block)};
    t.w = &o->part[t.part].w[t.expert];
    t.apart = task_columns(&h->cut[t.part], t.w->n_out, block, &t.col0, &t.col1);
    return t;
}

static void moe_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_moe_linear *o = &op->moe_linear;
    struct head *h = scratch;
    const struct expert_task t = find_expert_task(o, h, task);
    const uint8_t *behind = NULL;
    if ((task + 1) % h->n_cuts || o->begin[t.expert + 1] < o->begin[o->n_experts]) { /* there is a next task */
        const struct expert_task next = find_expert_task(o, h, task + 1);
        behind = columns_at(next.w, next.col0);
    }
    int end = o->begin[t.expert + 1], rows = block_rows(expert_rows(o, t.expert), o->x.width);
    for (int at = o->begin[t.expert]; at < end; at += rows) {
        struct linear_call call = {
            .w = t.w, .x = &o->x, .x_row = o->slot_row ? o->slot_row + at : NULL, .x0 = at, .scratch = (uint8_t *)scratch + SCRATCH_HEAD,
            .ahead = c->isa->ahead, .behind = behind, .n_rows = end - at < rows ? end - at : rows,
            .y = o->part[t.part].y + at * o->part[t.part].y_stride, .y_stride = o->part[t.part].y_stride, .apart = t.apart, .y_apart = t.apart,
        };
        run_columns(&call, t.col0, t.col1);
    }
}

const struct cpu_op cpu_op_moe_linear = {.n_tasks = moe_tasks, .run = moe_run, .scratch_bytes = linear_scratch};

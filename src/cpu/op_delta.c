/* The gated delta rule: what it needs of each row, then the recurrence.
 *
 * The inputs of the convolution of one sequence are a list: the taps - 1 rows of the conv state, the pending rows, this step's.
 * The recurrence runs slice by slice (one head, some columns of its state), so that a slice stays in L1 over all rows; with few
 * rows a slice is the whole head and is streamed. */
#include <math.h>
#include <string.h>

#include "cpu/delta.h"
#include "cpu/ops.h"

enum { PREPARE_ROWS = 32, PREPARE_UNITS = 4, FEW_ROWS = 2, MAX_TAPS = 16 };

/* Row i of the list of a group's convolution inputs. qkv: this step's inputs of the whole batch. */
static const float *conv_input(const struct delta_shape *s, const struct delta_group *g, const float *qkv, int i) {
    int held = s->conv_kernel - 1, c = delta_channels(s);
    if (i < held) return g->conv + (int64_t)i * c;
    if (i < held + g->n_pending) return g->pending.conv_in + (int64_t)(i - held) * c;
    return qkv + (int64_t)(g->row0 + i - held - g->n_pending) * c;
}

/* The group that a task is of. A thread's tasks follow each other, mostly, so the search goes on where the last one ended; at the head
 * of the scratch memory. */
struct found { int group, first; };
typedef int group_tasks(const struct cpu *c, const struct delta_shape *s, const struct delta_group *g);

static int all_tasks(const struct cpu *c, const struct delta_shape *s, const struct delta_group *groups, int n_groups, group_tasks *tasks, void *head) {
    int n = 0;
    for (int g = 0; g < n_groups; g++) n += tasks(c, s, &groups[g]);
    *(struct found *)head = (struct found){0, 0};
    return n;
}

/* *task: then counted within the group. */
static const struct delta_group *find_group(const struct cpu *c, const struct delta_shape *s, const struct delta_group *groups, group_tasks *tasks,
                                            struct found *f, int *task) {
    if (*task < f->first) *f = (struct found){0, 0};
    for (int n; *task - f->first >= (n = tasks(c, s, &groups[f->group])); f->group++) f->first += n;
    *task -= f->first;
    return &groups[f->group];
}

/* Units of a group in prepare, PREPARE_UNITS in a task: per block of rows each query, key and value head, then decay and beta. */
static int prepare_units(const struct delta_shape *s) { return 2 * s->key_heads + s->value_heads + 1; }
static int prepare_parts(const struct delta_shape *s) { return (prepare_units(s) + PREPARE_UNITS - 1) / PREPARE_UNITS; }
static int prepare_group_tasks(const struct cpu *c, const struct delta_shape *s, const struct delta_group *g) {
    return (void)c, (g->n_rows + PREPARE_ROWS - 1) / PREPARE_ROWS * prepare_parts(s);
}

static int prepare_tasks(const struct cpu *c, const struct op *op, void *head) {
    const struct op_delta_prepare *o = &op->delta_prepare;
    return all_tasks(c, &o->shape, o->groups, o->n_groups, prepare_group_tasks, head);
}

/* One head of rows [r0, r0 + n_rows): convolution, silu and, for queries and keys, the norm. */
static void prepare_head(const struct cpu_vec *vec, const struct op_delta_prepare *o, const struct delta_group *g, int r0,
                         int n_rows, int unit) {
    const struct delta_shape *s = &o->shape;
    int is_value = unit >= 2 * s->key_heads, n = is_value ? s->value_dim : s->key_dim, taps = s->conv_kernel;
    int c0 = is_value ? 2 * delta_keys(s) + (unit - 2 * s->key_heads) * n : unit * n;
    const float *in[PREPARE_ROWS + MAX_TAPS];
    CHECK(taps <= MAX_TAPS && n_rows <= PREPARE_ROWS);
    for (int i = 0; i < n_rows + taps - 1; i++) in[i] = conv_input(s, g, o->qkv, g->n_pending + r0 + i) + c0;
    float *out = o->mixed + (int64_t)(g->row0 + r0) * delta_channels(s) + c0;
    vec->conv(in, o->conv_weight + (int64_t)c0 * taps, o->conv_bias ? o->conv_bias + c0 : NULL, taps, n_rows, n, out,
              delta_channels(s));
    for (int r = 0; r < n_rows && !is_value; r++, out += delta_channels(s)) {
        float scale = 1.0f / sqrtf(vec->dot(out, out, n) + 1e-6f);
        if (unit < s->key_heads) scale /= sqrtf((float)s->key_dim);
        vec->norm(out, scale, NULL, NULL, n, out);
    }
}

static void prepare_unit(const struct cpu_vec *vec, const struct op_delta_prepare *o, const struct delta_group *g, int r0, int n_rows, int unit) {
    const int hv = o->shape.value_heads;
    if (unit + 1 < prepare_units(&o->shape)) {
        prepare_head(vec, o, g, r0, n_rows, unit);
        return;
    }
    for (int r = r0; r < r0 + n_rows; r++) {
        int64_t at = (int64_t)(g->row0 + r) * hv;
        vec->decay_beta(o->a + at, o->dt_bias, o->neg_exp_a_log, o->b + at, hv, o->decay + at, o->beta + at);
    }
}

static void prepare_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_delta_prepare *o = &op->delta_prepare;
    const struct delta_group *g = find_group(c, &o->shape, o->groups, prepare_group_tasks, scratch, &task);
    const int parts = prepare_parts(&o->shape), unit0 = task % parts * PREPARE_UNITS, r0 = task / parts * PREPARE_ROWS;
    const int n_rows = g->n_rows - r0 < PREPARE_ROWS ? g->n_rows - r0 : PREPARE_ROWS;
    for (int i = unit0; i < unit0 + PREPARE_UNITS && i < prepare_units(&o->shape); i++) prepare_unit(c->isa->vec, o, g, r0, n_rows, i);
}
const struct cpu_op cpu_op_delta_prepare = {.n_tasks = prepare_tasks, .run = prepare_run};

/* Columns of a slice of this group. */
static int slice_columns(const struct cpu *c, const struct delta_shape *s, const struct delta_group *g) {
    int slice = c->isa->delta->slice, apart = g->n_pending > DELTA_MOST_BEFORE ? g->n_pending - DELTA_MOST_BEFORE : 0;
    return g->n_rows + apart <= FEW_ROWS || slice > s->value_dim ? s->value_dim : slice;
}
static int slices_per_head(const struct cpu *c, const struct delta_shape *s, const struct delta_group *g) {
    int columns = slice_columns(c, s, g);
    return (s->value_dim + columns - 1) / columns;
}
/* Tasks of a group: its slices, then the convolution's inputs. */
static int delta_group_tasks(const struct cpu *c, const struct delta_shape *s, const struct delta_group *g) {
    return s->value_heads * slices_per_head(c, s, g) + 1;
}

static int delta_tasks(const struct cpu *c, const struct op *op, void *head) {
    return all_tasks(c, &op->delta.shape, op->delta.groups, op->delta.n_groups, delta_group_tasks, head);
}

/* The conv state behind the first n_rows rows of the step. In place: rows only move towards the front. */
static void keep_conv(const struct op_delta *o, const struct delta_group *g, int n_rows, float *conv) {
    int c = delta_channels(&o->shape);
    for (int i = 0; i < o->shape.conv_kernel - 1; i++) {
        const float *from = conv_input(&o->shape, g, o->qkv, g->n_pending + n_rows + i);
        if (from != conv + (int64_t)i * c) memcpy(conv + (int64_t)i * c, from, (size_t)c * sizeof *conv);
    }
}

static void run_conv(const struct op_delta *o, const struct delta_group *g) {
    size_t c = (size_t)delta_channels(&o->shape);
    for (int i = 0; i < g->n_snapshots; i++) keep_conv(o, g, g->snapshots[i].row, g->snapshots[i].conv);
    if (g->fold != FOLD_ALL) memcpy(g->log.conv_in, o->qkv + (size_t)g->row0 * c, (size_t)g->n_rows * c * sizeof *g->conv);
    if (g->fold != FOLD_NOTHING) keep_conv(o, g, g->fold == FOLD_ALL ? g->n_rows : 0, g->conv);
}

/* A slice: columns [c0, c0 + n) of value head h. ahead: the state that this thread will likely read next, of a size with its own; or NULL. */
struct slice { const struct op_delta *o; const struct delta_group *g; int h, c0, n; const float *ahead; };

static const float *slice_key(const struct slice *s, int r) { /* its query lies delta_keys before it */
    const struct delta_shape *p = &s->o->shape;
    int key_head = s->h / (p->value_heads / p->key_heads);
    return s->o->mixed + (int64_t)(s->g->row0 + r) * delta_channels(p) + delta_keys(p) + key_head * p->key_dim;
}
static float *slice_state(const struct slice *s, float *state) {
    return state + (int64_t)s->h * s->o->shape.key_dim * s->o->shape.value_dim + s->c0;
}

static void log_row(const struct slice *s, int r, float decay) {
    const struct delta_shape *p = &s->o->shape;
    int share = p->value_heads / p->key_heads;
    if (s->c0 > 0) return;
    s->g->log.decay[(int64_t)r * p->value_heads + s->h] = decay;
    float *k = s->g->log.k + (int64_t)r * delta_keys(p) + s->h / share * p->key_dim;
    if (s->h % share == 0) memcpy(k, slice_key(s, r), (size_t)p->key_dim * sizeof *k);
}

static struct delta_update pending_update(const struct slice *s, int j) {
    const struct delta_shape *p = &s->o->shape;
    const struct delta_log *log = &s->g->pending;
    int share = p->value_heads / p->key_heads;
    return (struct delta_update){log->decay[(int64_t)j * p->value_heads + s->h],
                                 log->k + (int64_t)j * delta_keys(p) + s->h / share * p->key_dim,
                                 log->u + ((int64_t)j * p->value_heads + s->h) * p->value_dim + s->c0};
}

/* The state that the first row begins with: t's in and before. What is not left to the row is applied in the state itself, or in buf
 * when the state will be written anyway or must not be. */
static void take_pending(const struct cpu_delta *d, const struct slice *s, float *buf, struct delta_step *t) {
    const struct delta_shape *p = &s->o->shape;
    const struct delta_group *g = s->g;
    const int in_place = g->fold == FOLD_PENDING || g->n_rows == 0;
    float *state = slice_state(s, g->state), *out = in_place ? state : buf;
    int64_t out_stride = in_place ? p->value_dim : s->n;
    t->in = state, t->in_stride = p->value_dim, t->n_before = 0;
    for (int j = 0; j < g->n_pending; j++) {
        struct delta_update update = pending_update(s, j);
        if (!in_place && g->n_pending - j <= DELTA_MOST_BEFORE) {
            t->before[t->n_before++] = update;
            continue;
        }
        d->fold(&(struct delta_fold){t->in, t->in_stride, out, out_stride, p->key_dim, s->n, update.decay, update.k, update.u, NULL});
        t->in = out, t->in_stride = out_stride;
    }
}

/* Where row r of the slice is. */
static void find_row(const struct slice *s, int r, const float **k, const float **q, const float **v, float **result) {
    const struct delta_shape *p = &s->o->shape;
    int64_t row = s->g->row0 + r;
    *k = slice_key(s, r), *q = *k - delta_keys(p);
    *v = s->o->mixed + row * delta_channels(p) + 2 * delta_keys(p) + s->h * p->value_dim + s->c0;
    *result = s->o->out + (row * p->value_heads + s->h) * p->value_dim + s->c0;
}

static void run_slice(const struct cpu_delta *d, const struct slice *s, float *scratch) {
    const struct delta_shape *p = &s->o->shape;
    const struct delta_group *g = s->g;
    float *u = scratch, *buf = scratch + p->value_dim;
    int snapshot = 0;
    const int64_t half = (int64_t)p->key_dim * s->n / 2;
    struct delta_step t = {.key_dim = p->key_dim, .n_columns = s->n, .ahead = s->ahead};
    take_pending(d, s, buf, &t);
    for (int r = 0; r < g->n_rows; r++) {
        int64_t row = g->row0 + r, at = row * p->value_heads + s->h;
        const int last = r + 1 == g->n_rows;
        t.out = !last || g->fold == FOLD_ALL || snapshot < g->n_snapshots ? buf : NULL, t.out_stride = s->n;
        find_row(s, r, &t.k, &t.q, &t.v, &t.result);
        t.next_k = NULL;
        if (!last) find_row(s, r + 1, &t.next_k, &t.next_q, &t.next_v, &t.next_result);
        t.decay = s->o->decay[at], t.beta = s->o->beta[at];
        t.u = g->fold == FOLD_ALL ? u : g->log.u + ((int64_t)r * p->value_heads + s->h) * p->value_dim + s->c0;
        d->step(&t);
        if (g->fold != FOLD_ALL) log_row(s, r, t.decay);
        for (; snapshot < g->n_snapshots && g->snapshots[snapshot].row == r + 1; snapshot++)
            d->fold(&(struct delta_fold){buf, s->n, slice_state(s, g->snapshots[snapshot].state), p->value_dim, p->key_dim,
                                         s->n, 1.0f, t.k, t.u, NULL});
        t.in = buf, t.in_stride = s->n, t.before[0] = (struct delta_update){1.0f, t.k, t.u}, t.n_before = 1, t.ahead = NULL;
    }
    if (g->n_rows && g->fold == FOLD_ALL)
        d->fold(&(struct delta_fold){buf, s->n, slice_state(s, g->state), p->value_dim, p->key_dim, s->n, 1.0f, t.before->k,
                                     t.before->u, s->ahead ? s->ahead + half : NULL});
}

/* Few rows: slices are whole heads, and each is read from memory. That of the next task, maybe of the next group; NULL: there is none. */
static const float *next_state(const struct op_delta *o, const struct delta_group *g, int h) {
    if (h + 1 < o->shape.value_heads) return g->state + (int64_t)(h + 1) * o->shape.key_dim * o->shape.value_dim;
    return g + 1 < o->groups + o->n_groups ? g[1].state : NULL;
}

static void delta_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_delta *o = &op->delta;
    const struct delta_group *g = find_group(c, &o->shape, o->groups, delta_group_tasks, scratch, &task);
    int per_head = slices_per_head(c, &o->shape, g), columns = slice_columns(c, &o->shape, g);
    if (task == o->shape.value_heads * per_head) {
        run_conv(o, g);
        return;
    }
    struct slice s = {o, g, task / per_head, task % per_head * columns, columns, NULL};
    if (per_head == 1) s.ahead = next_state(o, g, task);
    if (s.n > o->shape.value_dim - s.c0) s.n = o->shape.value_dim - s.c0;
    run_slice(c->isa->delta, &s, (float *)((uint8_t *)scratch + SCRATCH_HEAD));
}

static size_t delta_scratch(const struct cpu *c, const struct step_limits *l) {
    return (void)c, SCRATCH_HEAD + (size_t)(l->key_dim + 1) * (size_t)l->value_dim * sizeof(float);
}
const struct cpu_op cpu_op_delta = {.n_tasks = delta_tasks, .run = delta_run, .scratch_bytes = delta_scratch};

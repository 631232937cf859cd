/* Attention over pages.
 *
 * A tile is some rows of one group and one kv head: rows times heads query vectors that share every load of a block. Partial
 * results of blocks are merged into the segment's, the segment's into the total; where a group has few rows its segments are
 * tasks of their own, their results lie in c->shared, and OP_ATTENTION_MERGE joins them. Both ways make the same merges.
 *
 * With a rotated format (see kv.h) a row's sums are turned into the rotated space when its first rotated row comes, and back at
 * the end; whether that happens depends on the row's number alone. */
#include <math.h>
#include <string.h>

#include "cpu/attention.h"
#include "cpu/ops.h"

enum {
    SPLIT_ROWS = 16,
    SPLIT_PARTIALS = 1024,
    SEGMENT_ROWS = KV_PAGE_ROWS * KV_SEGMENT_PAGES,
    PARTIAL_EXTRA = 16,
    MAX_PAIRS = KV_MAX_DIM / 2
};

static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }
static int pieces(int n, int size) { return (n + size - 1) / size; }

/* ---- prepare: norms, rotation, storing ---- */

/* Polynomials on [-pi/4, pi/4], highest power first: sin r = r + r^3 s(r^2), cos r = 1 - r^2 / 2 + r^4 c(r^2). */
static const double sine_terms[6] = {1.58969099521155010221e-10, -2.50507602534068634195e-8, 2.75573137070700676789e-6,
                                     -1.98412698298579493134e-4, 8.33333333332248946124e-3, -1.66666666666666324348e-1};
static const double cosine_terms[6] = {-1.13596475577881948265e-11, 2.08757232129817482790e-9, -2.75573143513906633035e-7,
                                       2.48015872894767294178e-5, -1.38888888888741095749e-3, 4.16666666666666019037e-2};

/* Cosine and sine of the fp32 angle in plain double arithmetic, good for |x| up to 1e9: the same bits everywhere. */
static void turn(float angle, float *cosine, float *sine) {
    double x = angle, n = rint(x * 0.63661977236758134308);
    double r = (x - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11, z = r * r;
    double s = 0.0, c = 0.0;
    for (int i = 0; i < 6; i++) s = s * z + sine_terms[i], c = c * z + cosine_terms[i];
    s = r + r * z * s, c = 1.0 - 0.5 * z + z * z * c;
    int quarter = (int)((int64_t)n & 3);
    double a = quarter & 1 ? s : c, b = quarter & 1 ? c : s;
    *cosine = (float)(quarter == 1 || quarter == 2 ? -a : a);
    *sine = (float)(quarter >= 2 ? -b : b);
}

/* Blocks of 64 sequence rows that the group's rows lie in. */
static int touched_blocks(const struct attention_group *g) {
    return g->n_rows ? (g->n_before + g->n_rows - 1) / KV_PAGE_ROWS - g->n_before / KV_PAGE_ROWS + 1 : 0;
}

static int prepare_tasks(const struct cpu *c, const struct op *op, void *head) {
    (void)c, (void)head;
    const struct op_attention_prepare *o = &op->attention_prepare;
    int n = 0;
    for (int g = 0; g < o->n_groups; g++) n += touched_blocks(&o->groups[g]) * o->shape.n_kv_heads;
    return n;
}

/* Place of a page's K block; V lies k_bytes behind. */
static uint8_t *page_at(const struct kv_store *s, int32_t page, int kv_head) {
    return s->base + page * s->page_stride + kv_head * s->head_stride;
}

struct angles { float cosines[MAX_PAIRS], sines[MAX_PAIRS]; };

static void store_row(const struct op_attention_prepare *o, const struct attention_group *g, int position, int kv_head,
                      const float *k, const float *v) {
    int low = position < o->kv.kv_start, block = position / KV_PAGE_ROWS, row = position % KV_PAGE_ROWS;
    const struct kv_store *s = low ? &o->kv.low : &o->kv.high;
    uint8_t *at = page_at(s, (low ? g->low_pages : g->high_pages)[block], kv_head);
    s->k->k.write_row(at, (struct kv_shape){s->k_bits, s->group, o->shape.head_dim}, row, k);
    s->v->v.write_row(at + s->k_bytes, (struct kv_shape){s->v_bits, s->group, o->shape.head_dim}, row, v);
}

static void prepare_row(const struct cpu_vec *vec, const struct op_attention_prepare *o, const struct attention_group *g, int r,
                        int kv_head, float *k) {
    const struct attention_shape *s = &o->shape;
    int d = s->head_dim, share = s->n_heads / s->n_kv_heads, half = s->rotary_dim / 2;
    int64_t row = g->row0 + r;
    struct angles a;
    for (int i = 0; i < half; i++)
        turn(o->positions[(int64_t)o->axis_of_pair[i] * o->n_rows + row] * o->inv_freq[i], &a.cosines[i], &a.sines[i]);
    for (int h = kv_head * share; h < (kv_head + 1) * share; h++) {
        const float *x = o->q_gate + (row * s->n_heads + h) * 2 * d;
        float *q = o->q + (row * s->n_heads + h) * d;
        vec->norm(x, 1.0f / sqrtf(vec->dot(x, x, d) / (float)d + o->eps), o->q_gain, NULL, d, q);
        vec->rotate(q, a.cosines, a.sines, half);
        vec->norm(q, 1.0f / sqrtf((float)d), NULL, NULL, d, q);
    }
    const float *x = o->k + (row * s->n_kv_heads + kv_head) * d;
    vec->norm(x, 1.0f / sqrtf(vec->dot(x, x, d) / (float)d + o->eps), o->k_gain, NULL, d, k);
    vec->rotate(k, a.cosines, a.sines, half);
    store_row(o, g, g->n_before + r, kv_head, k, o->v + (row * s->n_kv_heads + kv_head) * d);
}

static void prepare_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_attention_prepare *o = &op->attention_prepare;
    const struct attention_group *g = o->groups;
    for (int n; task >= (n = touched_blocks(g) * o->shape.n_kv_heads); g++) task -= n;
    int block = g->n_before / KV_PAGE_ROWS + task / o->shape.n_kv_heads;
    int r0 = most(block * KV_PAGE_ROWS - g->n_before, 0), r1 = least((block + 1) * KV_PAGE_ROWS - g->n_before, g->n_rows);
    CHECK(o->shape.rotary_dim <= o->shape.head_dim && o->shape.head_dim <= KV_MAX_DIM);
    for (int r = r0; r < r1; r++) prepare_row(c->isa->vec, o, g, r, task % o->shape.n_kv_heads, scratch);
}

static size_t prepare_scratch(const struct cpu *c, const struct step_limits *l) {
    return (void)c, (void)l, KV_MAX_DIM * sizeof(float);
}
const struct cpu_op cpu_op_attention_prepare = {.n_tasks = prepare_tasks, .run = prepare_run, .scratch_bytes = prepare_scratch};

/* ---- how a step is cut ---- */

/* kv heads of one task: one, unless its heads' columns would not end at blocks of 32. */
static int heads_of_task(const struct attention_shape *s) {
    int share = s->n_heads / s->n_kv_heads;
    return cpu_heads_together(share * s->head_dim, s->n_kv_heads);
}
static int tile_rows(const struct attention_shape *s) { return most(ATTENTION_MAX_Q / (s->n_heads / s->n_kv_heads), 1); }

static int64_t partial_floats(const struct attention_shape *s) { return (int64_t)s->n_heads * (s->head_dim + PARTIAL_EXTRA); }
static int segments(int n_rows) { return pieces(n_rows, SEGMENT_ROWS); }

/* Partial results of (row, segment) that c->shared holds: enough for one row at the longest context, and for many at usual ones.
 * Groups beyond it are not split. */
static int partial_room(const struct step_limits *l) {
    int rows = l->max_context_rows > 0 ? l->max_context_rows : 64 * SEGMENT_ROWS;
    return least(least(l->max_rows, SPLIT_ROWS) * segments(rows), most(SPLIT_PARTIALS, segments(rows)));
}

size_t cpu_attention_shared_bytes(const struct step_limits *l) {
    struct attention_shape s = {l->n_heads, l->n_kv_heads, l->head_dim, 0};
    return (size_t)(partial_room(l) * partial_floats(&s)) * sizeof(float) + 64;
}

/* One group's cut. Split: every segment by itself, partial results from number `partial` on; else tiles of rows. */
struct cut { const struct attention_group *g; int split, partial, n_parts, n_segments; };

struct cuts { const struct op_attention *o; int next_group, room; };

static int next_cut(const struct cpu *c, struct cuts *w, struct cut *out) {
    if (w->next_group == w->o->n_groups) return 0;
    if (w->next_group == 0) w->room = partial_room(&c->limits);
    const struct attention_group *g = out->g = &w->o->groups[w->next_group++];
    int rows = tile_rows(&w->o->shape);
    out->n_segments = segments(g->n_before + g->n_rows);
    out->split = g->n_rows <= rows && out->n_segments > 1 && g->n_rows * out->n_segments <= w->room;
    out->partial = partial_room(&c->limits) - w->room;
    if (out->split) w->room -= g->n_rows * out->n_segments;
    out->n_parts = out->split ? out->n_segments : pieces(g->n_rows, rows);
    return 1;
}

static float *partial_at(const struct cpu *c, const struct attention_shape *s, const struct cut *cut, int row, int segment,
                         int head) {
    int64_t number = cut->partial + (int64_t)row * cut->n_segments + segment;
    return c->shared + number * partial_floats(s) + (int64_t)head * (s->head_dim + PARTIAL_EXTRA);
}

/* ---- a tile ---- */

struct tile {
    const struct cpu *c;
    const struct op_attention *o;
    const struct attention_group *g;
    int r0, r1, kv_head;             /* rows of the group */
    struct attention_work w;
    float *segment, *segment_highest, *segment_sum; /* [n_q][dim], [n_q], [n_q] */
    float *total, *total_highest, *total_sum;
    float *out;                      /* [rows][heads of the task][dim] */
};

static int share_of(const struct tile *t) { return t->o->shape.n_heads / t->o->shape.n_kv_heads; }
/* Position of query vector q. */
static int position_of(const struct tile *t, int q) { return t->g->n_before + t->r0 + q / share_of(t); }
/* First query vector at or behind a position. */
static int first_at(const struct tile *t, int position) {
    return least(most(position - t->g->n_before - t->r0, 0) * share_of(t), t->w.n_q);
}

static void *take(uint8_t *base, size_t *used, size_t bytes) {
    void *p = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return p;
}

/* Lays the buffers of a tile out from `base` on (NULL: to count); gives the bytes. */
static size_t lay_out(struct tile *t, int max_q, int dim, size_t out_floats, uint8_t *base) {
    struct attention_work *w = &t->w;
    size_t q = (size_t)max_q, d = (size_t)dim, f = sizeof(float), used = 0, *n = &used;
    w->dim = dim, w->max_q = max_q;
    w->q = take(base, n, q * d * f), w->q_pairs = take(base, n, q * d * 4);
    w->q_high = take(base, n, q * d * 4), w->q_low = take(base, n, q * d * 4);
    w->q_scale = take(base, n, q * d / 16 * f), w->q_sum = take(base, n, q * d / 16 * f);
    w->scores = take(base, n, q * KV_ROWS * f), w->more_scores = take(base, n, q * KV_ROWS * f);
    w->highest = take(base, n, q * f), w->sum = take(base, n, q * f);
    w->o = take(base, n, q * d * f), w->more_o = take(base, n, q * d * f);
    w->dots = take(base, n, q * KV_ROWS * f), w->p_pairs = take(base, n, q * KV_ROWS * 4),
    w->weights = take(base, n, q * KV_ROWS * f);
    w->p_high = take(base, n, q * KV_ROWS * 4), w->p_low = take(base, n, q * KV_ROWS * 4);
    w->p_scale = take(base, n, q * f), w->p_sum = take(base, n, q * f);
    w->codes = take(base, n, KV_ROWS * d), w->scale = take(base, n, d / 16 * KV_ROWS * f),
    w->bias = take(base, n, d / 16 * KV_ROWS * f);
    w->rows = take(base, n, KV_ROWS * d * f), w->wide = take(base, n, KV_ROWS * KV_ROWS * f);
    t->segment = take(base, n, q * d * f), t->segment_highest = take(base, n, q * f), t->segment_sum = take(base, n, q * f);
    t->total = take(base, n, q * d * f), t->total_highest = take(base, n, q * f), t->total_sum = take(base, n, q * f);
    t->out = take(base, n, out_floats * f);
    return used;
}

static void tile_begin(struct tile *t, int kv_head) {
    const struct op_attention *o = t->o;
    int d = o->shape.head_dim, share = share_of(t), n = t->r1 - t->r0;
    t->kv_head = kv_head, t->w.n_q = n * share;
    const float *from = o->q + ((int64_t)(t->g->row0 + t->r0) * o->shape.n_heads + kv_head * share) * d;
    for (int r = 0; r < n; r++)
        memcpy(t->w.q + (int64_t)r * share * d, from + (int64_t)r * o->shape.n_heads * d, (size_t)(share * d) * sizeof *from);
    const struct kv_store *low = &o->kv.low, *high = &o->kv.high;
    const struct cpu_attention *a = t->c->isa->attention;
    if (o->kv.kv_start > 0) a->prepare(&t->w, low->k, (struct kv_shape){low->k_bits, low->group, d});
    a->prepare(&t->w, high->k, (struct kv_shape){high->k_bits, high->group, d});
}

/* K's products fetch V of the same block meanwhile, V's fetch K of the next block. */
static struct attention_block block_of(const struct tile *t, int low, int is_v, int block, int more) {
    const struct kv_store *s = low ? &t->o->kv.low : &t->o->kv.high;
    const int32_t *pages = low ? t->g->low_pages : t->g->high_pages;
    const uint8_t *k = page_at(s, pages[block], t->kv_head), *v = k + s->k_bytes;
    if (!is_v) return (struct attention_block){s->k, {s->k_bits, s->group, t->w.dim}, k, v - k};
    return (struct attention_block){
        s->v, {s->v_bits, s->group, t->w.dim}, v, more ? page_at(s, pages[block + 1], t->kv_head) - v : 0};
}

static int turns(const struct tile *t) { return t->o->kv.high.v->v.rotated; }
static int is_turned(const struct tile *t, int position, int from_row) { /* do sums over rows from_row.. hold rotated ones? */
    return turns(t) && position >= t->o->kv.kv_start && from_row > t->o->kv.kv_start - KV_PAGE_ROWS;
}

/* Weights of vectors [q0, q1) over one block, then the block's partial result in w->o. n_low: rows of it in the low page; n:
 * rows of it that some vector sees. `high`: the vectors see rows of the high page. `more`: the next block comes next. */
static void block_part(struct tile *t, int block, int q0, int q1, int n_low, int n, int high, int more) {
    struct attention_work *w = &t->w;
    const struct cpu_attention *a = t->c->isa->attention;
    int n_q = w->n_q, d = w->dim;
    struct attention_block k[2], v[2];
    int more_low = n_low == KV_ROWS && (block + 2) * KV_PAGE_ROWS <= t->o->kv.kv_start && more;
    if (n_low) k[1] = block_of(t, 1, 0, block, 0), v[1] = block_of(t, 1, 1, block, more_low);
    if (high) k[0] = block_of(t, 0, 0, block, 0), v[0] = block_of(t, 0, 1, block, more);
    w->n_q = q1;
    a->scores(w, &k[n_low > 0], q0, w->scores);
    if (high && n_low) {
        a->scores(w, &k[0], q0, w->more_scores);
        for (int q = 0; q < q1 - q0; q++)
            memcpy(w->scores + q * KV_ROWS + n_low, w->more_scores + q * KV_ROWS + n_low, (size_t)(KV_ROWS - n_low) * 4);
    }
    for (int q = 0; q < q1 - q0; q++) {
        int seen = least(position_of(t, q0 + q) + 1 - block * KV_PAGE_ROWS, KV_ROWS);
        a->softmax(w->scores + q * KV_ROWS, seen, w->highest + q, w->sum + q);
    }
    if (high && n_low) {
        memcpy(w->more_scores, w->scores, (size_t)(q1 - q0) * KV_ROWS * sizeof(float));
        for (int q = 0; q < q1 - q0; q++) {
            memset(w->scores + q * KV_ROWS + n_low, 0, (size_t)(KV_ROWS - n_low) * sizeof(float));
            memset(w->more_scores + q * KV_ROWS, 0, (size_t)n_low * sizeof(float));
        }
        a->values(w, &v[1], q0, 0, n_low, w->scores, w->o);
        a->values(w, &v[0], q0, n_low, n, w->more_scores, w->more_o);
        for (int q = 0; q < q1 - q0; q++) {
            if (turns(t)) kv_rotate(w->o + (int64_t)q * d, d);
            t->c->isa->vec->add_scaled(w->o + (int64_t)q * d, w->more_o + (int64_t)q * d, 1.0f, d);
        }
    } else {
        a->values(w, &v[n_low > 0], q0, 0, high ? n : least(n, n_low), w->scores, w->o);
    }
    w->n_q = n_q;
}

/* Joins the partial results of [q0, q1) to the segment's; the first block begins it. */
static void join_block(struct tile *t, int block, int q0, int q1, int first) {
    struct attention_work *w = &t->w;
    int d = w->dim, row = block * KV_PAGE_ROWS;
    for (int q = q0; q < q1; q++) {
        float *o = t->segment + (int64_t)q * d, *part = w->o + (int64_t)(q - q0) * d;
        if (first) {
            memcpy(o, part, (size_t)d * sizeof *o);
            t->segment_highest[q] = w->highest[q - q0], t->segment_sum[q] = w->sum[q - q0];
            continue;
        }
        int p = position_of(t, q);
        if (is_turned(t, p, row) && !is_turned(t, p, row - KV_PAGE_ROWS)) kv_rotate(o, d);
        t->c->isa->attention->merge(t->segment_highest + q, t->segment_sum + q, o, w->highest[q - q0], w->sum[q - q0], part, d);
    }
}

static void run_segment(struct tile *t, int segment) {
    int start = t->o->kv.kv_start, seen = position_of(t, t->w.n_q - 1) + 1;
    int b0 = segment * KV_SEGMENT_PAGES, b1 = least(b0 + KV_SEGMENT_PAGES, pieces(seen, KV_PAGE_ROWS));
    for (int b = b0; b < b1; b++) {
        int row = b * KV_PAGE_ROWS, n_low = least(most(start - row, 0), KV_ROWS), n = least(seen - row, KV_ROWS);
        int q0 = first_at(t, row), q1 = t->w.n_q;
        if (n_low > 0) { /* vectors that see low rows only first */
            int seam = n_low == KV_ROWS ? q1 : most(first_at(t, start), q0);
            if (seam > q0) {
                block_part(t, b, q0, seam, n_low, n, 0, b + 1 < b1);
                join_block(t, b, q0, seam, b == b0);
            }
            q0 = seam;
        }
        if (q0 < q1) {
            block_part(t, b, q0, q1, n_low, n, 1, b + 1 < b1);
            join_block(t, b, q0, q1, b == b0);
        }
    }
}

/* Where the last row that (position) sees of a segment lies: does the segment's sum end up rotated? */
static int segment_turned(const struct tile *t, int position, int segment) {
    return is_turned(t, position, least(position, (segment + 1) * SEGMENT_ROWS - 1) / KV_PAGE_ROWS * KV_PAGE_ROWS);
}

/* Joins one segment's result to a total; the first segment begins it. */
static void join_segment(const struct tile *t, int position, int segment, float *highest, float *sum, float *o, const float *part,
                         float part_highest, float part_sum) {
    int d = t->w.dim;
    if (segment == 0) {
        memcpy(o, part, (size_t)d * sizeof *o);
        *highest = part_highest, *sum = part_sum;
        return;
    }
    if (segment_turned(t, position, segment) && !segment_turned(t, position, segment - 1)) kv_rotate(o, d);
    t->c->isa->attention->merge(highest, sum, o, part_highest, part_sum, part, d);
}

/* The total over its sum, times the gate, to `to`. */
static void finish_head(const struct tile *t, int row, int head, float *o, float sum, float *to) {
    const struct op_attention *a = t->o;
    int d = a->shape.head_dim, position = t->g->n_before + row;
    if (is_turned(t, position, position / KV_PAGE_ROWS * KV_PAGE_ROWS)) kv_rotate_back(o, d);
    const float *gate = a->q_gate + ((int64_t)(t->g->row0 + row) * a->shape.n_heads + head) * 2 * d + d;
    t->c->isa->vec->gated(o, 1.0f / sum, gate, d, to);
}

static void put_heads(const struct tile *t, int row, int first_kv_head, int n_kv_heads, const float *x) {
    int columns = share_of(t) * t->o->shape.head_dim;
    cpu_rows_put(t->c->isa->vec, &t->o->out, t->g->row0 + row, first_kv_head * columns, n_kv_heads * columns, x);
}

/* All segments of a tile of rows for kv heads [h0, h0 + n_heads). */
static void run_rows(struct tile *t, int h0, int n_heads) {
    int d = t->w.dim, share = share_of(t);
    for (int h = h0; h < h0 + n_heads; h++) {
        tile_begin(t, h);
        int last = position_of(t, t->w.n_q - 1) / SEGMENT_ROWS;
        for (int s = 0; s <= last; s++) {
            run_segment(t, s);
            for (int q = first_at(t, s * SEGMENT_ROWS); q < t->w.n_q; q++)
                join_segment(t, position_of(t, q), s, t->total_highest + q, t->total_sum + q, t->total + (int64_t)q * d,
                             t->segment + (int64_t)q * d, t->segment_highest[q], t->segment_sum[q]);
        }
        for (int q = 0; q < t->w.n_q; q++)
            finish_head(t, t->r0 + q / share, h * share + q % share, t->total + (int64_t)q * d, t->total_sum[q],
                        t->out + ((int64_t)(q / share * n_heads + h - h0) * share + q % share) * d);
    }
    for (int r = t->r0; r < t->r1; r++) put_heads(t, r, h0, n_heads, t->out + (int64_t)(r - t->r0) * n_heads * share * d);
}

/* One segment of all rows of a split group. */
static void run_split(struct tile *t, const struct cut *cut, int segment, int h0, int n_heads) {
    int d = t->w.dim, share = share_of(t);
    for (int h = h0; h < h0 + n_heads; h++) {
        tile_begin(t, h);
        run_segment(t, segment);
        for (int q = first_at(t, segment * SEGMENT_ROWS); q < t->w.n_q; q++) {
            float *to = partial_at(t->c, &t->o->shape, cut, q / share, segment, h * share + q % share);
            memcpy(to, t->segment + (int64_t)q * d, (size_t)d * sizeof *to);
            to[d] = t->segment_highest[q], to[d + 1] = t->segment_sum[q];
        }
    }
}

static int attention_tasks(const struct cpu *c, const struct op *op, void *head) {
    (void)head;
    const struct op_attention *o = &op->attention;
    int n = 0;
    struct cuts w = {o, 0, 0};
    for (struct cut cut; next_cut(c, &w, &cut);) n += cut.n_parts * (o->shape.n_kv_heads / heads_of_task(&o->shape));
    return n;
}

static size_t out_floats(const struct attention_shape *s) {
    return (size_t)(tile_rows(s) * heads_of_task(s) * (s->n_heads / s->n_kv_heads) * s->head_dim);
}
static int max_q(const struct attention_shape *s) { return most(ATTENTION_MAX_Q, s->n_heads / s->n_kv_heads); }

static void attention_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_attention *o = &op->attention;
    int heads = heads_of_task(&o->shape), units = o->shape.n_kv_heads / heads;
    struct cuts walk = {o, 0, 0};
    struct cut cut;
    while (next_cut(c, &walk, &cut) && task >= cut.n_parts * units) task -= cut.n_parts * units;
    struct tile t = {.c = c, .o = o, .g = cut.g};
    lay_out(&t, max_q(&o->shape), o->shape.head_dim, out_floats(&o->shape), scratch);
    int part = task / units, h0 = task % units * heads, rows = tile_rows(&o->shape);
    if (cut.split) {
        t.r0 = 0, t.r1 = cut.g->n_rows;
        run_split(&t, &cut, part, h0, heads);
    } else {
        part = cut.n_parts - 1 - part; /* the last rows take longest: first */
        t.r0 = part * rows, t.r1 = least(t.r0 + rows, cut.g->n_rows);
        run_rows(&t, h0, heads);
    }
}

static size_t attention_scratch(const struct cpu *c, const struct step_limits *l) {
    struct attention_shape s = {l->n_heads, l->n_kv_heads, l->head_dim, 0};
    struct tile t = {.c = c};
    return s.n_kv_heads ? lay_out(&t, max_q(&s), s.head_dim, out_floats(&s), NULL) : 0;
}
const struct cpu_op cpu_op_attention = {.n_tasks = attention_tasks, .run = attention_run, .scratch_bytes = attention_scratch};

/* ---- merge: rows of split groups ---- */

static int merge_tasks(const struct cpu *c, const struct op *op, void *head) {
    (void)head;
    const struct op_attention *o = &op->attention;
    int n = 0;
    struct cuts w = {o, 0, 0};
    for (struct cut cut; next_cut(c, &w, &cut);)
        if (cut.split) n += cut.g->n_rows * (o->shape.n_kv_heads / heads_of_task(&o->shape));
    return n;
}

static void merge_run(const struct cpu *c, const struct op *op, int task, void *scratch) {
    const struct op_attention *o = &op->attention;
    int heads = heads_of_task(&o->shape), units = o->shape.n_kv_heads / heads, d = o->shape.head_dim;
    struct cuts walk = {o, 0, 0};
    struct cut cut;
    while (next_cut(c, &walk, &cut))
        if (cut.split) {
            if (task < cut.g->n_rows * units) break;
            task -= cut.g->n_rows * units;
        }
    struct tile t = {.c = c, .o = o, .g = cut.g, .w = {.dim = d}};
    int row = task / units, h0 = task % units * heads, share = share_of(&t), position = cut.g->n_before + row;
    float *total = scratch, *out = total + d;
    for (int h = h0 * share; h < (h0 + heads) * share; h++) {
        float highest = 0.0f, sum = 0.0f;
        for (int s = 0; s <= position / SEGMENT_ROWS; s++) {
            const float *part = partial_at(c, &o->shape, &cut, row, s, h);
            join_segment(&t, position, s, &highest, &sum, total, part, part[d], part[d + 1]);
        }
        finish_head(&t, row, h, total, sum, out + (int64_t)(h - h0 * share) * d);
    }
    put_heads(&t, row, h0, heads, out);
}

static size_t merge_scratch(const struct cpu *c, const struct step_limits *l) {
    return (void)c, (size_t)(l->n_heads + 1) * (size_t)l->head_dim * sizeof(float);
}
const struct cpu_op cpu_op_attention_merge = {.n_tasks = merge_tasks, .run = merge_run, .scratch_bytes = merge_scratch};

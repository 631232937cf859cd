#include "lora/parts.h"

#include <math.h>
#include <string.h>

#include "quant/quant.h"

enum { MOST_RANK = 4096 }; /* DoRA's norms need a square of it */

/* ---- shapes ---- */

static int wrong_shape(const struct tensor *t, const struct adapter_target *g, const char *wanted, struct weft_error *e) {
    char shape[TENSOR_SHAPE_TEXT];
    return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has the shape %s; for \"%s\" it is to be %s", t->file, t->name,
                     tensor_shape_text(t, shape), g->name, wanted);
}

static int check_rank(const struct slot *s, const struct adapter_target *g, int64_t ra, int64_t rb, struct weft_error *e) {
    if (ra != rb)
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has rank %lld, but \"%s\" has %lld", s->b->file, s->b->name,
                         (long long)rb, s->a->name, (long long)ra);
    if (ra < 1 || ra > MOST_RANK)
        return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" gives \"%s\" a rank of %lld", s->a->file, s->a->name, g->name,
                         (long long)ra);
    return 0;
}

/* Two axes, one of which is `fixed`; the other is the rank. */
static int rank_axis(const struct tensor *t, const struct adapter_target *g, int fixed_axis, int fixed, int64_t *rank,
                     struct weft_error *e) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, fixed_axis ? "[rank, %d]" : "[%d, rank]", fixed);
    if (t->n_dims != 2 || t->shape[fixed_axis] != fixed) return wrong_shape(t, g, wanted, e);
    *rank = t->shape[1 - fixed_axis];
    return 0;
}

/* Stacks: a [E, rank, in] or [E * rank, in], b [E, out, rank]. */
static int expert_shapes(const struct slot *s, const struct adapter_target *g, int *rank, struct weft_error *e) {
    char wanted[64];
    const struct tensor *a = s->a, *b = s->b;
    snprintf(wanted, sizeof wanted, "[%d, %d, rank]", g->n_experts, g->n_out);
    if (b->n_dims != 3 || b->shape[0] != g->n_experts || b->shape[1] != g->n_out) return wrong_shape(b, g, wanted, e);
    snprintf(wanted, sizeof wanted, "[%d, rank, %d]", g->n_experts, g->n_in);
    int64_t last = a->n_dims ? a->shape[a->n_dims - 1] : 0, ra = 0;
    if (a->n_dims == 3) ra = a->shape[1];
    if (a->n_dims == 2) ra = a->shape[0] / g->n_experts;
    if (last != g->n_in || (a->n_dims == 3 ? a->shape[0] != g->n_experts : a->n_dims != 2 || a->shape[0] % g->n_experts))
        return wrong_shape(a, g, wanted, e);
    *rank = (int)ra;
    return check_rank(s, g, ra, b->shape[2], e);
}

/* Which way the two lie: the axis of A that is not the rank, and that of B. */
static void orientation(const struct adapter *a, const struct adapter_target *g, const struct slot *s, int *a_axis, int *b_axis) {
    int peft_linear = a->rules.format == FORMAT_PEFT && g->kind == TARGET_LINEAR;
    *a_axis = peft_linear || s->is_embedding;  /* [rank, in], [rank, vocabulary]; MLX [in, rank] */
    *b_axis = !(peft_linear || s->is_embedding); /* [out, rank], [hidden, rank]; MLX [rank, out] */
}

/* ---- values ---- */

static int read_floats(const struct tensor *t, float *out, struct weft_error *e) {
    int64_t n = tensor_elements(t);
    tensor_to_floats(t, 0, n, out);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is not finite at element %lld", t->file, t->name,
                             (long long)i);
    return 0;
}

static void *take(struct adapter *a, size_t count, size_t size) {
    a->bytes += count * size;
    return arena_new(&a->arena, count, size);
}

/* [rows][cols] to [cols][rows] */
static void transpose(const float *from, int rows, int cols, float *to) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) to[(size_t)j * (size_t)rows + (size_t)i] = from[(size_t)i * (size_t)cols + (size_t)j];
}

/* n matrices [rows][cols] of a tensor, each turned when `turn`. */
static int widen(struct adapter *a, const struct tensor *t, int n, int rows, int cols, int turn, float **out,
                 struct weft_error *e) {
    size_t one = (size_t)rows * (size_t)cols;
    if (!(*out = take(a, one * (size_t)n, sizeof **out))) return error_memory(e, t->file);
    if (!turn) return read_floats(t, *out, e);
    float *stored = mem_alloc(one * (size_t)n * sizeof *stored);
    if (!stored) return error_memory(e, t->file);
    int code = read_floats(t, stored, e);
    for (int i = 0; i < n && !code; i++) transpose(stored + (size_t)i * one, rows, cols, *out + (size_t)i * one);
    mem_free(stored);
    return code;
}

static int any(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (x[i] != 0) return 1;
    return 0;
}

/* ---- DoRA ---- */

/* Sums in 16 lanes of floats over at most 1024 values, those in doubles. */
static double dot(const float *x, const float *y, int n) {
    enum { LANES = 16, PIECE = 1024 };
    double sum = 0;
    for (int at = 0; at < n; at += PIECE) {
        float lane[LANES] = {0};
        int end = at + PIECE < n ? at + PIECE : n, i = at;
        for (; i + LANES <= end; i += LANES)
            for (int j = 0; j < LANES; j++) lane[j] += x[i + j] * y[i + j];
        for (; i < end; i++) sum += (double)x[i] * (double)y[i];
        for (int j = 0; j < LANES; j++) sum += (double)lane[j];
    }
    return sum;
}

struct norms { const struct weight *w; const struct part *p; const double *gram; float *rows; atomic_int next; };

/* |w|^2, w.d and |d|^2 for every row w of W and d = sum over r of b[r] A[r]; |d|^2 through the products of A's rows. */
static void norms_run(void *arg, int thread, int n_threads) {
    struct norms *s = arg;
    const struct part *p = s->p;
    int n = (int)s->w->n_cols, n_out = (int)s->w->n_rows;
    float *row = s->rows + (size_t)thread * (size_t)n;
    (void)n_threads;
    for (int o, end; pool_claim(&s->next, n_out, 1, &o, &end);) {
        double wd = 0, dd = 0;
        weight_decode(s->w, o, row);
        for (int r = 0; r < p->rank; r++) {
            double b = (double)p->b[(size_t)r * (size_t)n_out + (size_t)o];
            wd += b * dot(row, p->a + (size_t)r * (size_t)n, n);
            for (int q = 0; q < p->rank; q++)
                dd += b * (double)p->b[(size_t)q * (size_t)n_out + (size_t)o] * s->gram[r * p->rank + q];
        }
        double *out = p->norms + 3 * (size_t)o;
        out[0] = dot(row, row, n), out[1] = wd, out[2] = dd;
    }
}

static int read_norms(struct adapter *a, const struct adapter_target *g, struct part *p, struct weft_error *e) {
    struct pool *pool = a->base->backend->pool;
    size_t rank = (size_t)p->rank, n_in = (size_t)g->n_in;
    double *gram = mem_alloc(rank * rank * sizeof *gram);
    struct norms s = {.w = g->weight, .p = p, .gram = gram, .rows = mem_alloc((size_t)pool_threads(pool) * n_in * sizeof(float))};
    p->norms = take(a, 3 * (size_t)g->n_out, sizeof *p->norms);
    int code = gram && s.rows && p->norms ? 0 : error_memory(e, a->folder);
    for (size_t r = 0; r < rank && !code; r++)
        for (size_t q = 0; q < rank; q++) gram[r * rank + q] = dot(p->a + r * n_in, p->a + q * n_in, g->n_in);
    if (!code) pool_run(pool, norms_run, &s);
    mem_free(gram), mem_free(s.rows);
    return code;
}

static int read_magnitude(struct adapter *a, const struct adapter_target *g, const struct tensor *t, struct part *p,
                          struct weft_error *e) {
    if (g->kind != TARGET_LINEAR)
        return error_set(e, WEFT_ERROR_SUPPORT, "%s: tensor \"%s\": DoRA on embeddings and experts is not supported", t->file,
                         t->name);
    char wanted[32];
    snprintf(wanted, sizeof wanted, "[%d]", g->n_out);
    if (t->n_dims != 1 || t->shape[0] != g->n_out) return wrong_shape(t, g, wanted, e);
    if (!(p->magnitude = take(a, (size_t)g->n_out, sizeof *p->magnitude))) return error_memory(e, a->folder);
    int code = read_floats(t, p->magnitude, e);
    return code ? code : read_norms(a, g, p, e);
}

/* Does the magnitude alone change anything? Magnitudes are stored in 8 or more bits: what they begin with is no change. */
static int magnitude_acts(const struct part *p, int n_out) {
    for (int i = 0; i < n_out && p->magnitude; i++) {
        double norm = sqrt(p->norms[3 * (size_t)i]);
        if (fabs((double)p->magnitude[i] - norm) > norm / 128) return 1;
    }
    return 0;
}

/* ---- a target's tensors ---- */

static int read_low_rank(struct adapter *a, int target, struct weft_error *e) {
    const struct adapter_target *g = &a->base->targets[target];
    const struct slot *s = &a->slots[target];
    struct part *p = &a->parts[target];
    const char *file = (s->a ? s->a : s->b ? s->b : s->magnitude)->file;
    if (!s->a || !s->b)
        return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" has no lora_%s", file, s->path, s->a ? "B" : "A");
    if (a->rules.dora && !s->magnitude && g->kind == TARGET_LINEAR)
        return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" has no magnitude, though %s says DoRA", file, s->path, a->rules.config);
    if (a->rules.format == FORMAT_PEFT && g->kind == TARGET_EMBEDDING && !s->is_embedding)
        return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is an embedding, but its tensors are those of a linear layer", file,
                         s->path);
    int stacked = g->kind == TARGET_EXPERTS, a_axis = 1, b_axis = 0, rank = 0, code;
    if (stacked) {
        if ((code = expert_shapes(s, g, &rank, e))) return code;
    } else {
        int64_t ra = 0, rb = 0;
        orientation(a, g, s, &a_axis, &b_axis);
        (void)((code = rank_axis(s->a, g, a_axis, g->n_in, &ra, e)) || (code = rank_axis(s->b, g, b_axis, g->n_out, &rb, e)) ||
            (code = check_rank(s, g, ra, rb, e)));
        if (code) return code;
        rank = (int)ra;
    }
    if ((code = rules_scale(&a->rules, s->path, rank, &p->scale, e))) return code;
    int n = stacked ? g->n_experts : 1;
    int turn_a = g->kind == TARGET_EMBEDDING ? a_axis == 1 : a_axis == 0, turn_b = b_axis == 0;
    int a_rows = a_axis ? rank : g->n_in, b_rows = b_axis ? rank : g->n_out;
    (void)((code = widen(a, s->a, n, a_rows, a_axis ? g->n_in : rank, turn_a, &p->a, e)) ||
        (code = widen(a, s->b, n, b_rows, b_axis ? g->n_out : rank, turn_b, &p->b, e)));
    if (code) return code;
    p->rank = rank;
    if (s->magnitude && (code = read_magnitude(a, g, s->magnitude, p, e))) return code;
    size_t count = (size_t)n * (size_t)rank;
    int acts = p->scale != 0 && any(p->a, count * (size_t)g->n_in) && any(p->b, count * (size_t)g->n_out);
    if (!acts && !magnitude_acts(p, g->n_out)) *p = (struct part){0}, a->n_zero++;
    else if (rank > a->rank) a->rank = rank;
    return 0;
}

/* [n]; a convolution's [channels, taps] with a 1 anywhere behind the channels: the numbers lie in one order in all of these. */
static int is_vector_shape(const struct tensor *t, const struct adapter_target *g) {
    if (!g->n_in) return tensor_is_shape(t, 1, (const int64_t[]){g->n_values});
    return tensor_is_shape(t, 2, (const int64_t[]){g->n_out, g->n_in}) ||
           tensor_is_shape(t, 3, (const int64_t[]){g->n_out, 1, g->n_in}) ||
           tensor_is_shape(t, 3, (const int64_t[]){g->n_out, g->n_in, 1});
}

static int read_vector(struct adapter *a, int target, struct weft_error *e) {
    const struct adapter_target *g = &a->base->targets[target];
    const struct tensor *t = a->slots[target].replaced;
    struct part *p = &a->parts[target];
    char wanted[64];
    snprintf(wanted, sizeof wanted, g->n_in ? "[%d, 1, %d]" : "[%d]", g->n_in ? g->n_out : g->n_values, g->n_in);
    if (!is_vector_shape(t, g)) return wrong_shape(t, g, wanted, e);
    if (!(p->values = take(a, (size_t)g->n_values, sizeof *p->values))) return error_memory(e, a->folder);
    int code = read_floats(t, p->values, e);
    for (int i = 0; i < g->n_values && !code; i++) {
        if (g->kind == TARGET_A_LOG) p->values[i] = -expf(p->values[i]);
        else if (g->kind == TARGET_GAIN && a->rules.format == FORMAT_PEFT) p->values[i] += 1.0f;
    }
    if (!code && memcmp(p->values, g->values, (size_t)g->n_values * sizeof *p->values) == 0) p->values = NULL, a->n_same++;
    return code;
}

int part_read(struct adapter *a, int target, struct weft_error *e) {
    const struct slot *s = &a->slots[target];
    int low_rank = s->a || s->b || s->magnitude, code = 0;
    if (low_rank && s->replaced)
        return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is replaced by \"%s\" and has a LoRA as well", s->replaced->file,
                         s->path, s->replaced->name);
    if (s->copy) code = part_check_copy(a, target, e);
    if (!code && low_rank) code = read_low_rank(a, target, e);
    if (!code && s->replaced)
        code = a->base->targets[target].kind >= TARGET_GAIN ? read_vector(a, target, e) : part_replace(a, target, e);
    return code;
}

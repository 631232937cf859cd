#include <math.h>
#include <string.h>

#include "lora/parts.h"

static int check_shape(const struct tensor *t, const struct adapter_target *g, struct weft_error *e) {
    int64_t rows = g->weight->n_rows, cols = g->weight->n_cols;
    if (tensor_is_shape(t, 2, (const int64_t[]){rows, cols})) return 0;
    char shape[TENSOR_SHAPE_TEXT];
    return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has the shape %s, but \"%s\" is [%lld, %lld]", t->file, t->name,
                     tensor_shape_text(t, shape), g->name, (long long)rows, (long long)cols);
}

static struct weight dense_weight(const struct tensor *t, int64_t n_rows, int64_t n_cols) {
    const char *repr = t->dtype == DTYPE_F32 ? "f32" : t->dtype == DTYPE_F16 ? "f16" : "bf16";
    return (struct weight){
        .repr = representation_find(repr), .name = t->name, .file = t->file, .n_rows = n_rows, .n_cols = n_cols,
        .dtype = t->dtype, .bits = 8 * dtype_bytes(t->dtype), .data = t->data,
        .row_bytes = (size_t)n_cols * (size_t)dtype_bytes(t->dtype)};
}

/* ||x - w|| / ||w|| over decoded rows; -1 when there is no memory. */
static double distance(const struct weight *x, const struct weight *w) {
    float *rows = mem_alloc(2 * (size_t)w->n_cols * sizeof *rows), *other = rows + w->n_cols;
    double difference = 0, whole = 0;
    if (!rows) return -1;
    for (int64_t r = 0; r < w->n_rows; r++) {
        weight_decode(x, r, rows), weight_decode(w, r, other);
        for (int64_t i = 0; i < w->n_cols; i++) {
            double d = (double)rows[i] - (double)other[i];
            difference += d * d, whole += (double)other[i] * (double)other[i];
        }
    }
    mem_free(rows);
    return sqrt(difference) / (whole > 0 ? sqrt(whole) : 1);
}

/* A copy of the base's weight beside a LoRA. Of a quantized base it can be the unquantized original. */
int part_check_copy(struct adapter *a, int target, struct weft_error *e) {
    const struct adapter_target *g = &a->base->targets[target];
    const struct tensor *t = a->slots[target].copy;
    if (!g->weight)
        return error_set(e, WEFT_ERROR_SUPPORT, "%s: tensor \"%s\": copies of experts are not supported", t->file, t->name);
    int code = check_shape(t, g, e);
    if (code) return code;
    struct weight w = dense_weight(t, g->weight->n_rows, g->weight->n_cols);
    int same_bytes = g->weight->dtype == t->dtype && memcmp(t->data, g->weight->data, t->n_bytes) == 0;
    double far = same_bytes ? 0 : distance(&w, g->weight), most = g->weight->repr->kind == REPR_DENSE ? 0 : 0.3;
    if (far < 0) return error_memory(e, a->folder);
    if (!(far <= most))
        return error_set(e, WEFT_ERROR_INPUT,
                         "%s: tensor \"%s\" is not the base's \"%s\" (relative distance %.3g): the adapter is for another base",
                         t->file, t->name, g->name, far);
    a->n_copies++;
    return 0;
}

/* The same values in fp32, for bases whose rows have no form for the file's type. */
static int widen(struct adapter *a, struct weight *w, struct weft_error *e) {
    float *values = arena_new(&a->arena, (size_t)w->n_rows * (size_t)w->n_cols, sizeof *values);
    if (!values) return error_memory(e, a->folder);
    for (int64_t r = 0; r < w->n_rows; r++) weight_decode(w, r, values + r * w->n_cols);
    w->repr = representation_find("f32"), w->dtype = DTYPE_F32, w->bits = 32;
    w->data = (const uint8_t *)values, w->row_bytes = (size_t)w->n_cols * sizeof *values;
    a->bytes += w->row_bytes * (size_t)w->n_rows;
    return 0;
}

static int ready_linear(struct adapter *a, const struct linear *base, struct part *p, struct weft_error *e) {
    const struct backend_table *table = a->base->backend->table;
    p->linear = arena_new(&a->arena, 1, sizeof *p->linear);
    if (!p->linear) return error_memory(e, a->folder);
    int code = table->linear_choose(a->base->backend, p->weight, p->linear, e);
    if (!code && !(p->linear->kernel[0]->form & (FORM_F32 | base->kernel[0]->form))) {
        code = widen(a, p->weight, e);
        if (!code) code = table->linear_choose(a->base->backend, p->weight, p->linear, e);
    }
    const struct linear_layout *layout = code ? NULL : p->linear->kernel[0]->layout;
    if (code || !layout || !layout->bytes) return code;
    size_t bytes = p->linear->data_bytes;
    if (!(p->linear->data = table->memory_new(a->base->backend, bytes))) return error_memory(e, a->folder);
    a->packed[a->n_packed] = p->linear->data, a->packed_bytes[a->n_packed++] = bytes;
    a->bytes += bytes;
    layout->pack(p->weight, p->linear->data, 0, p->linear->n_out);
    return 0;
}

int part_replace(struct adapter *a, int target, struct weft_error *e) {
    const struct adapter_target *g = &a->base->targets[target];
    const struct tensor *t = a->slots[target].replaced;
    struct part *p = &a->parts[target];
    if (!g->weight)
        return error_set(e, WEFT_ERROR_SUPPORT, "%s: tensor \"%s\": replaced experts are not supported", t->file, t->name);
    int code = check_shape(t, g, e);
    if (code) return code;
    struct weight w = dense_weight(t, g->weight->n_rows, g->weight->n_cols);
    if ((code = weight_check(&w, 0, w.n_rows, e))) return code;
    if (g->weight->dtype == t->dtype && memcmp(t->data, g->weight->data, t->n_bytes) == 0) {
        a->n_same++;
        return 0;
    }
    if (!(p->weight = arena_new(&a->arena, 1, sizeof *p->weight))) return error_memory(e, a->folder);
    *p->weight = w;
    a->bytes += t->n_bytes;
    return g->linear ? ready_linear(a, g->linear, p, e) : 0;
}

int part_tie_head(struct adapter *a, struct weft_error *e) {
    const struct adapter_base *base = a->base;
    const struct part *from = &a->parts[base->embedding];
    struct part *p = &a->parts[base->head];
    if (!a->rules.tie || !base->tied || part_is_empty(from) || !part_is_empty(p)) return 0;
    const struct adapter_target *g = &base->targets[base->head];
    if (from->weight) {
        if (!(p->weight = arena_new(&a->arena, 1, sizeof *p->weight))) return error_memory(e, a->folder);
        *p->weight = *from->weight;
        return ready_linear(a, g->linear, p, e);
    }
    /* row t += scale * a[t] b, so logit t += scale * (x b') a[t]' */
    size_t rank = (size_t)from->rank, vocab = (size_t)g->n_out, hidden = (size_t)g->n_in;
    p->a = arena_new(&a->arena, rank * hidden, sizeof *p->a), p->b = arena_new(&a->arena, rank * vocab, sizeof *p->b);
    if (!p->a || !p->b) return error_memory(e, a->folder);
    a->bytes += rank * (hidden + vocab) * sizeof *p->a;
    memcpy(p->a, from->b, rank * hidden * sizeof *p->a);
    for (size_t t = 0; t < vocab; t++)
        for (size_t r = 0; r < rank; r++) p->b[r * vocab + t] = from->a[t * rank + r];
    p->rank = from->rank, p->scale = from->scale;
    return 0;
}

#include "quant/open.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "quant/affine.h"
#include "quant/rows.h"

enum { BLOCK = 128 };

/* What is being opened: n_stack matrices [n_rows, n_cols] in one tensor with that leading axis; 0: one plain matrix. */
struct request {
    struct checkpoint *c;
    const char *module;
    int64_t n_stack, n_rows, n_cols;
    struct weft_error *e;
};

/* One matrix of a stack lies this many bytes behind the one before. */
struct strides { size_t data, scales; };

static int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

/* [n_stack, rows, cols], or [rows, cols] of a plain matrix. */
static int check_shape(const struct request *q, const struct tensor *t, int64_t rows, int64_t cols) {
    int64_t want[3] = {q->n_stack, rows, cols};
    struct tensor expected = {.n_dims = q->n_stack ? 3 : 2};
    memcpy(expected.shape, q->n_stack ? want : want + 1, (size_t)expected.n_dims * sizeof *want);
    if (tensor_is_shape(t, expected.n_dims, expected.shape)) return 0;
    char have[TENSOR_SHAPE_TEXT], text[TENSOR_SHAPE_TEXT];
    return error_set(q->e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has the shape %s, expected %s", t->file, t->name,
                     tensor_shape_text(t, have), tensor_shape_text(&expected, text));
}

static int missing(const struct request *q, const struct tensor *t, const char *leaf) {
    return error_set(q->e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is quantized, but its %s are missing", t->file, t->name, leaf);
}

/* A tensor that belongs to the module under another way of storing it than the one found. */
static int refuse_leaf(const struct request *q, const struct tensor *t, const char *leaf) {
    const struct tensor *extra = checkpoint_look(q->c, q->module, leaf);
    if (!extra) return 0;
    return error_set(q->e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" does not go with \"%s\", which is %s", extra->file, extra->name, t->name,
                     dtype_name(t->dtype));
}

static int refuse_leaves(const struct request *q, const struct tensor *t, const char *const *leaves) {
    int code = 0;
    for (; *leaves && !code; leaves++) code = refuse_leaf(q, t, *leaves);
    return code;
}

static int open_dense(struct weight *w, const struct request *q, const struct tensor *t, struct strides *s) {
    static const char *const others[] = {"scales", "biases", "weight_scale", "weight_scale_inv", NULL};
    w->repr = t->dtype == DTYPE_BF16 ? &repr_bf16 : t->dtype == DTYPE_F16 ? &repr_f16 : &repr_f32;
    w->bits = 8 * dtype_bytes(t->dtype);
    int code = check_shape(q, t, q->n_rows, q->n_cols);
    if (!code) code = refuse_leaves(q, t, others);
    w->row_bytes = (size_t)q->n_cols * (size_t)dtype_bytes(t->dtype);
    s->data = w->row_bytes * (size_t)q->n_rows;
    return code;
}

static int open_fp8(struct weight *w, const struct request *q, const struct tensor *t, struct strides *s) {
    static const char *const others[] = {"scales", "biases", "weight_scale", NULL};
    int code = check_shape(q, t, q->n_rows, q->n_cols);
    if (!code) code = refuse_leaves(q, t, others);
    if (code) return code;
    const struct tensor *scale = checkpoint_take(q->c, q->module, "weight_scale_inv");
    if (!scale) { /* experts in one tensor have no ".weight" */
        char name[NAME_ROOM];
        snprintf(name, sizeof name, "%s_scale_inv", q->module);
        scale = checkpoint_take(q->c, name, "");
    }
    if (!scale) return missing(q, t, "weight_scale_inv");
    if (!dtype_is_float(scale->dtype))
        return error_set(q->e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is %s, not F32, F16 or BF16", scale->file, scale->name,
                         dtype_name(scale->dtype));
    code = check_shape(q, scale, up(q->n_rows, BLOCK), up(q->n_cols, BLOCK));
    w->repr = &repr_fp8, w->bits = 8;
    w->scales = scale->data, w->scale_dtype = scale->dtype;
    w->row_bytes = (size_t)q->n_cols, w->scale_row_bytes = (size_t)(up(q->n_cols, BLOCK) * dtype_bytes(scale->dtype));
    s->data = w->row_bytes * (size_t)q->n_rows, s->scales = w->scale_row_bytes * (size_t)up(q->n_rows, BLOCK);
    return code;
}

/* Bits and group from the last axes of weight and scales; both must come out exactly. */
static int derive_widths(struct weight *w, const struct request *q, const struct tensor *t, const struct tensor *scales) {
    int64_t words = t->n_dims ? t->shape[t->n_dims - 1] : 0, groups = scales->n_dims ? scales->shape[scales->n_dims - 1] : 0;
    int exact = words > 0 && words < INT32_MAX && groups > 0 && 32 * words % q->n_cols == 0 && q->n_cols % groups == 0;
    w->bits = exact ? (int)(32 * words / q->n_cols) : 0, w->group = exact ? (int)(q->n_cols / groups) : 0;
    if (exact) return 0;
    char a[TENSOR_SHAPE_TEXT], b[TENSOR_SHAPE_TEXT];
    return error_set(q->e, WEFT_ERROR_INPUT,
                     "%s: tensor \"%s\" %s with scales %s gives no whole number of bits and no whole group for %lld inputs", t->file,
                     t->name, tensor_shape_text(t, a), tensor_shape_text(scales, b), (long long)q->n_cols);
}

/* The members by what shapes and dtypes say (mode: how a config would call it). */
static int decide_mode(struct weight *w, const struct request *q, const struct tensor *t, const struct tensor *scales,
                       const struct tensor *biases) {
    if (dtype_is_float(scales->dtype)) {
        if (!biases) return missing(q, t, "biases");
        if (biases->dtype != scales->dtype)
            return error_set(q->e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is %s, but \"%s\" is %s", biases->file, biases->name,
                             dtype_name(biases->dtype), scales->name, dtype_name(scales->dtype));
        w->repr = affine_bits_ok(w->bits) && affine_group_ok(w->group) ? &repr_affine : NULL;
    } else if (scales->dtype == DTYPE_U8 && !biases) {
        w->repr = w->group == 16 && w->bits == 4   ? &repr_nvfp4
                  : w->group == 32 && w->bits == 4 ? &repr_mxfp4
                  : w->group == 32 && w->bits == 8 ? &repr_mxfp8
                                                   : NULL;
    }
    if (w->repr) return 0;
    return error_set(q->e, WEFT_ERROR_SUPPORT, "%s: tensor \"%s\" with %d bits in groups of %d and %s scales is not supported", t->file,
                     t->name, w->bits, w->group, dtype_name(scales->dtype));
}

static void compare_claim(const struct weight *w, const struct request *q) {
    struct quantization_claim claim;
    if (!checkpoint_claim(q->c, q->module, &claim)) return;
    int agrees = claim.quantized && (!claim.bits || claim.bits == w->bits) && (!claim.group || claim.group == w->group) &&
                 strcmp(claim.mode, w->repr->name) == 0;
    if (agrees) return;
    log_write(LOG_WARNING, "%s: \"%s\" is %s with %d bits in groups of %d, whatever config.json says", w->file, w->name, w->repr->name,
              w->bits, w->group);
}

static int open_packed(struct weight *w, const struct request *q, const struct tensor *t, struct strides *s) {
    static const char *const others[] = {"weight_scale", "weight_scale_inv", "global_scale", NULL};
    const struct tensor *scales = checkpoint_take(q->c, q->module, "scales"), *biases = checkpoint_take(q->c, q->module, "biases");
    if (!scales) return missing(q, t, "scales");
    int code = refuse_leaves(q, t, others);
    if (!code) code = derive_widths(w, q, t, scales);
    if (!code) code = decide_mode(w, q, t, scales, biases);
    if (!code) code = check_shape(q, t, q->n_rows, q->n_cols * w->bits / 32);
    if (!code) code = check_shape(q, scales, q->n_rows, q->n_cols / w->group);
    if (!code && biases) code = check_shape(q, biases, q->n_rows, q->n_cols / w->group);
    if (code) return code;
    w->scales = scales->data, w->biases = biases ? biases->data : NULL, w->scale_dtype = scales->dtype;
    w->row_bytes = (size_t)(q->n_cols * w->bits / 8);
    w->scale_row_bytes = (size_t)(q->n_cols / w->group * dtype_bytes(scales->dtype));
    s->data = w->row_bytes * (size_t)q->n_rows, s->scales = w->scale_row_bytes * (size_t)q->n_rows;
    compare_claim(w, q);
    return 0;
}

/* The first matrix of the stack. */
static int open_stack(struct weight *w, const struct request *q, struct strides *s) {
    *w = (struct weight){.n_rows = q->n_rows, .n_cols = q->n_cols};
    *s = (struct strides){0};
    const struct tensor *t = checkpoint_take(q->c, q->module, "weight");
    if (!t) t = checkpoint_take(q->c, q->module, "");
    if (!t) return error_set(q->e, WEFT_ERROR_INPUT, "%s: tensor \"%s.weight\" is missing", q->c->folder, q->module);
    w->name = t->name, w->file = t->file, w->dtype = t->dtype, w->data = t->data;
    if (dtype_is_float(t->dtype)) return open_dense(w, q, t, s);
    if (t->dtype == DTYPE_U32) return open_packed(w, q, t, s);
    if (t->dtype == DTYPE_F8_E4M3) return open_fp8(w, q, t, s);
    return error_set(q->e, WEFT_ERROR_SUPPORT, "%s: tensor \"%s\" is %s, which is not supported for a matrix", t->file, t->name,
                     dtype_name(t->dtype));
}

int weight_open(struct weight *out, struct checkpoint *c, const char *module, int64_t n_rows, int64_t n_cols, struct weft_error *e) {
    struct strides strides;
    return open_stack(out, &(struct request){c, module, 0, n_rows, n_cols, e}, &strides);
}

int weight_exists(struct checkpoint *c, const char *module) {
    return checkpoint_look(c, module, "weight") || checkpoint_look(c, module, "");
}

static struct weight in_stack(const struct weight *first, const struct strides *s, int64_t i) {
    struct weight w = *first;
    w.data += (size_t)i * s->data;
    if (w.scales) w.scales += (size_t)i * s->scales;
    if (w.biases) w.biases += (size_t)i * s->scales;
    return w;
}

enum { GATE, UP, DOWN, GATE_UP };
static const char *const part_names[] = {"gate_proj", "up_proj", "down_proj", "gate_up_proj"};

/* One kind of projection of n experts. */
static int open_part(struct expert_weights *out, int n, const struct request *q, int part) {
    struct weight first;
    struct strides strides;
    int code = open_stack(&first, q, &strides);
    for (int i = 0; i < n && !code; i++) {
        struct weight w = in_stack(&first, &strides, i);
        if (part == GATE_UP) out[i].gate = weight_rows(&w, 0, q->n_rows / 2), out[i].up = weight_rows(&w, q->n_rows / 2, q->n_rows / 2);
        else *(part == GATE ? &out[i].gate : part == UP ? &out[i].up : &out[i].down) = w;
    }
    return code;
}

int weight_open_experts(struct expert_weights *out, int n_experts, struct checkpoint *c, const char *mlp, int64_t hidden,
                        int64_t inner, struct weft_error *e) {
    char module[NAME_ROOM];
    struct request q = {c, module, n_experts, inner, hidden, e};
    int code = 0;
    snprintf(module, sizeof module, "%s.experts.gate_up_proj", mlp);
    if (weight_exists(c, module)) {
        q.n_rows = 2 * inner;
        if ((code = open_part(out, n_experts, &q, GATE_UP))) return code;
        snprintf(module, sizeof module, "%s.experts.down_proj", mlp);
        q.n_rows = hidden, q.n_cols = inner;
        return open_part(out, n_experts, &q, DOWN);
    }
    snprintf(module, sizeof module, "%s.switch_mlp.gate_proj", mlp);
    int stacked = weight_exists(c, module);
    if (!stacked) q.n_stack = 0;
    for (int part = GATE; part <= DOWN && !code; part++) {
        q.n_rows = part == DOWN ? hidden : inner, q.n_cols = part == DOWN ? inner : hidden;
        for (int i = 0; i < (stacked ? 1 : n_experts) && !code; i++) {
            if (stacked) snprintf(module, sizeof module, "%s.switch_mlp.%s", mlp, part_names[part]);
            else snprintf(module, sizeof module, "%s.experts.%d.%s", mlp, i, part_names[part]);
            code = open_part(out + i, stacked ? n_experts : 1, &q, part);
        }
    }
    return code;
}

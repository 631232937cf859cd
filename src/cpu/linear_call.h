/* What every linear kernel needs: the rows of a call and where results go. */
#ifndef CPU_LINEAR_CALL_H
#define CPU_LINEAR_CALL_H
#include "backend/linear.h"
#include "quant/convert.h"
#include "quant/quant.h"

static inline int64_t call_row(const struct linear_call *c, int i) { return c->x_row ? c->x_row[i] : c->x0 + i; }
static inline const float *call_f32(const struct linear_call *c, int i) { return c->x->f32 + call_row(c, i) * c->x->width; }
static inline const uint16_t *call_bf16(const struct linear_call *c, int i) { return c->x->bf16 + call_row(c, i) * c->x->padded; }
static inline const int8_t *call_q8(const struct linear_call *c, int i) { return c->x->q8 + call_row(c, i) * c->x->padded; }
static inline const float *call_q8_scale(const struct linear_call *c, int i) {
    return c->x->q8_scale + call_row(c, i) * (c->x->padded / Q8_BLOCK);
}
static inline const float *call_q8_sum(const struct linear_call *c, int i) {
    return c->x->q8_sum + call_row(c, i) * (c->x->padded / Q8_BLOCK);
}
static inline float *call_y(const struct linear_call *c, int i) { return c->y + i * c->y_stride; }

/* n results of row i, columns from col on. */
static inline void call_store(const struct linear_call *c, int i, int col, int n, const float *result) {
    float *y = call_y(c, i) + col;
    for (int j = 0; j < n; j++) y[j] = c->accumulate ? y[j] + result[j] : result[j];
}

static inline float scale_value(const uint8_t *p, int i, enum dtype t) {
    if (t == DTYPE_BF16) return float_from_bf16(load_u16(p + 2 * i));
    return t == DTYPE_F16 ? float_from_f16(load_u16(p + 2 * i)) : load_f32(p + 4 * i);
}
#endif

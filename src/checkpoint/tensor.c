#include <stdio.h>
#include <string.h>

#include "base/convert.h"
#include "checkpoint/safetensors.h"

int64_t tensor_elements(const struct tensor *t) { return (int64_t)t->n_bytes / dtype_bytes(t->dtype); }

int tensor_is_shape(const struct tensor *t, int n_dims, const int64_t *shape) {
    return t->n_dims == n_dims && memcmp(t->shape, shape, (size_t)n_dims * sizeof *shape) == 0;
}

const char *tensor_shape_text(const struct tensor *t, char out[TENSOR_SHAPE_TEXT]) {
    int n = snprintf(out, TENSOR_SHAPE_TEXT, "[");
    for (int i = 0; i < t->n_dims; i++)
        n += snprintf(out + n, (size_t)(TENSOR_SHAPE_TEXT - n), "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    snprintf(out + n, (size_t)(TENSOR_SHAPE_TEXT - n), "]");
    return out;
}

void tensor_to_floats(const struct tensor *t, int64_t first, int64_t n, float *out) {
    CHECK(dtype_is_float(t->dtype) && first >= 0 && n >= 0 && first + n <= tensor_elements(t));
    const uint8_t *p = t->data + first * dtype_bytes(t->dtype);
    if (t->dtype == DTYPE_F32) {
        if (n) memcpy(out, p, (size_t)n * 4);
    } else if (t->dtype == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++) out[i] = float_from_bf16(load_u16(p + 2 * i));
    } else {
        for (int64_t i = 0; i < n; i++) out[i] = float_from_f16(load_u16(p + 2 * i));
    }
}

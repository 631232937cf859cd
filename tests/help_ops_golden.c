#include "help_ops.h"

int ops_golden_open(struct ops_golden *g, const char *name) {
    char path[128];
    struct weft_error e;
    snprintf(path, sizeof path, "goldens/ops/%s.safetensors", name);
    const char *full = help_shared(path);
    if (!full) return 0;
    assert_int_equal(safetensors_open(&g->file, full, &e), 0);
    return 1;
}

const struct tensor *ops_golden_tensor(const struct ops_golden *g, const char *name) {
    const struct tensor *t = safetensors_find(g->file, name);
    assert_non_null(t);
    return t;
}

float *ops_golden_floats(const struct ops_golden *g, const char *name) {
    const struct tensor *t = ops_golden_tensor(g, name);
    int64_t n = tensor_elements(t);
    float *out = ops_new((size_t)n);
    if (t->dtype == DTYPE_I32) {
        for (int64_t i = 0; i < n; i++) {
            int32_t v;
            memcpy(&v, t->data + i * 4, 4);
            out[i] = (float)v;
        }
    } else {
        tensor_to_floats(t, 0, n, out);
    }
    return out;
}

void ops_golden_close(struct ops_golden *g) { safetensors_close(g->file); }

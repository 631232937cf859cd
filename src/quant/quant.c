#include "quant/quant.h"

#include <string.h>

#include "quant/rows.h"

const struct representation *const representations[] = {
    &repr_bf16,  &repr_f16,   &repr_f32,   &repr_affine, &repr_fp8,
    &repr_mxfp4, &repr_mxfp8, &repr_nvfp4, NULL,
};

const struct representation *representation_find(const char *name) {
    for (int i = 0; representations[i]; i++)
        if (strcmp(representations[i]->name, name) == 0) return representations[i];
    return NULL;
}

enum { BLOCK = 128 };

size_t weight_bytes(const struct weight *w) {
    size_t bytes = w->row_bytes * (size_t)w->n_rows;
    if (w->repr->kind == REPR_FP8) {
        int64_t first = w->block_row0 / BLOCK, last = (w->block_row0 + w->n_rows + BLOCK - 1) / BLOCK;
        return bytes + w->scale_row_bytes * (size_t)(last - first);
    }
    return bytes + w->scale_row_bytes * (size_t)w->n_rows * (w->scales ? w->biases ? 2 : 1 : 0);
}

double weight_bits(const struct weight *w) {
    return 8.0 * (double)weight_bytes(w) / ((double)w->n_rows * (double)w->n_cols);
}

struct weight weight_rows(const struct weight *w, int64_t row0, int64_t n_rows) {
    CHECK(row0 >= 0 && n_rows >= 0 && row0 + n_rows <= w->n_rows);
    struct weight part = *w;
    part.n_rows = n_rows;
    part.data += (size_t)row0 * w->row_bytes;
    if (w->repr->kind == REPR_FP8) {
        part.block_row0 += row0;
    } else {
        if (part.scales) part.scales += (size_t)row0 * w->scale_row_bytes;
        if (part.biases) part.biases += (size_t)row0 * w->scale_row_bytes;
    }
    return part;
}

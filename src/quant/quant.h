/* What stored bits mean. One row of `representations` per way of storing a matrix, each owing check and decode: that makes it
 * correct everywhere; kernels only make it fast. */
#ifndef QUANT_QUANT_H
#define QUANT_QUANT_H
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "checkpoint/dtype.h"

/* One matrix in place in the mapped file: y[n_rows] = W [n_rows, n_cols] x[n_cols]. Any pointer may be unaligned. */
struct weight {
    const struct representation *repr;
    const char *name;          /* for sentences: the tensor as the file calls it; lives as long as the checkpoint */
    const char *file;
    int64_t n_rows, n_cols;    /* outputs, inputs (K) */
    enum dtype dtype;          /* of `data`: F32 F16 BF16 (dense), U32 (affine, mx), F8_E4M3 */
    int bits, group;           /* affine and mx: bits a code, codes along K to a scale; dense: bits alone */
    const uint8_t *data;       /* row r begins at data + r * row_bytes */
    size_t row_bytes;
    enum dtype scale_dtype;
    const uint8_t *scales;     /* affine, mx: [n_rows][n_cols / group]; fp8: [blocks of 128 rows][blocks of 128 columns] */
    const uint8_t *biases;     /* affine: as scales */
    size_t scale_row_bytes;    /* of scales and of biases */
    int64_t block_row0;        /* fp8: this matrix's first row within the tensor that the blocks count from */
};

enum repr_kind { REPR_DENSE, REPR_AFFINE, REPR_FP8, REPR_MX };

struct representation {
    const char *name;          /* "bf16", "affine", "fp8", "mxfp4" */
    enum repr_kind kind;
    enum dtype dtype;          /* of the data */
    int packed;                /* values are checked at open (kernels pack or look them up); dense ones by `inspect --verify` */
    /* Rows [row0, row0 + n_rows): finite and legal? The sentence names tensor, file and row. Rows may be checked in parallel. */
    int (*check)(const struct weight *w, int64_t row0, int64_t n_rows, struct weft_error *e);
    /* Row `row` as n_cols floats, exactly (affine: fp32 q * s + b, the product and the sum each rounded once). */
    void (*decode)(const struct weight *w, int64_t row, float *out);
};
extern const struct representation *const representations[]; /* ends with NULL */
const struct representation *representation_find(const char *name);

static inline int weight_check(const struct weight *w, int64_t row0, int64_t n_rows, struct weft_error *e) {
    return w->repr->check(w, row0, n_rows, e);
}
static inline void weight_decode(const struct weight *w, int64_t row, float *out) { w->repr->decode(w, row, out); }
double weight_bits(const struct weight *w);    /* bits a weight, scales and biases included */
size_t weight_bytes(const struct weight *w);   /* in the file, scales and biases included */
/* Rows [row0, row0 + n_rows) of w as a matrix of their own. */
struct weight weight_rows(const struct weight *w, int64_t row0, int64_t n_rows);
#endif

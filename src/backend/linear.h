/* Matrix products y = x W', as rows of lists.
 *
 * Invariants
 * 1. The result for one row and one column depends on that row, that column and `arithmetic` alone: not on the number of
 *    rows, the kernel, the column range of a call or the thread. Two kernels with the same arithmetic string give the same bits.
 * 2. A plan mixes kernels only within one arithmetic.
 * 3. A kernel that is in a list is tested: tests and benchmarks walk the lists. */
#ifndef BACKEND_LINEAR_H
#define BACKEND_LINEAR_H
#include <stddef.h>
#include <stdint.h>

#include "backend/rows.h"

struct weight; /* quant/quant.h: one matrix as stored in its file, [n_rows = outputs][n_cols = inputs] */
struct weft_error;

/* Few rows are read as STREAMS ranges of columns side by side, as far from each other as the matrix allows: memory gives more to long
 * streams, and more to four than to one. */
enum { STREAMS = 4, STREAM_TILE = 16 };

/* Row classes: 1-4, 5-8, 9-15, 16-32, more. */
enum { N_ROW_CLASSES = 5 };
extern const int row_class_limit[N_ROW_CLASSES]; /* 4, 8, 15, 32, INT_MAX */
int row_class(int n_rows);

/* How a weight lies in memory for a kernel. bytes == NULL: in place, straight from the file's mapping. */
struct linear_layout {
    const char *name;
    size_t (*bytes)(const struct weight *w);
    /* Fills the part of `out` that belongs to output columns [col0, col1); col0 is a multiple of `tile`, col1 too or the end.
     * Calls for disjoint ranges may run at once. */
    void (*pack)(const struct weight *w, void *out, int col0, int col1);
    int tile;
};

/* How many bytes ahead of their use weights are asked for: into L1, and further ahead into L2, which takes more lines at a time (0: not). */
struct ahead { int near, far; };

struct linear_call {
    const struct linear *w;
    const struct rows *x;
    int n_rows;
    const int32_t *x_row;  /* [n_rows]: which row of x feeds each result row; NULL: x0 + i */
    int x0;                /* first row of x when x_row is NULL */
    float *y;              /* result row i at y + i * y_stride, column c at [c] */
    int64_t y_stride;
    int apart;             /* 0, or (kernels with stream_rows): the call is for STREAMS ranges of whole STREAM_TILEs, [col0, col1) and
                            * those `apart`, 2 apart and 3 apart columns further, ... */
    int64_t y_apart;       /* ... whose results lie y_apart floats apart */
    int accumulate;        /* y += result, as one addition after the product is complete */
    struct ahead ahead;    /* of weights, where rows are few */
    const uint8_t *behind; /* the weights that this thread will likely read after this call's; NULL: those of the next columns */
    void *scratch;         /* this thread's, linear_kernel.scratch_bytes(...) bytes, 64-byte aligned */
    int same_rows;         /* scratch is as the same kernel left it behind a call for the same rows of the same x and weights of
                            * the same group size */
};

struct linear_kernel {
    const char *name;
    const char *repr;       /* name in quant's list: "bf16", "affine", ... */
    int bits;               /* 0: any of that representation */
    const struct linear_layout *layout;
    const char *arithmetic;
    int form;               /* the FORM_ it reads */
    int min_rows, max_rows;
    int tile;               /* column ranges of a call start at a multiple of it; it divides STREAM_TILE */
    int stream_rows;        /* with up to so many rows it takes calls with `apart` */
    size_t (*scratch_bytes)(int n_rows, int n_in); /* NULL: none */
    void (*run)(const struct linear_call *c, int col0, int col1);
};

/* A weight made ready: what the plan keeps per projection. */
struct linear {
    const struct weight *source;
    const struct linear_kernel *kernel[N_ROW_CLASSES];
    void *data;             /* packed bytes, or NULL when in place (kernels then read source) */
    size_t data_bytes;
    int n_in, n_out;
    int with_rest;          /* y is the product with the int8 row plus, as one addition, that with its rest (FORM_Q8_REST) */
};
#endif

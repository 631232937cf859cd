/* Primitives of attention: a tile of query vectors against one block of 64 stored rows.
 *
 * A value depends on its own query vector and the block's rows alone: every sum is one chain in ascending order per lane (lanes
 * are rows in scores, elements in values). Rows outside [r0, r1) may hold anything. */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H
#include <stddef.h>

#include "quant/kv.h"

enum { ATTENTION_MAX_Q = 48 }; /* query vectors of a tile, unless one row alone has more heads to a kv head */

/* Buffers of one thread; everything is 64-byte aligned. Row strides are those in brackets. */
struct attention_work {
    int dim, max_q, n_q;
    float *q;                      /* [max_q][dim] */
    uint8_t *q_pairs;              /* [max_q][dim * 4 bytes]: for bf16 blocks */
    int32_t *q_high, *q_low;       /* [max_q][dim / 4 steps], 1 or 4 words a step: for blocks of codes ... */
    float *q_scale, *q_sum;        /* [max_q][dim / 32] */
    int q_group;                   /* ... of groups of this size */
    float *scores, *more_scores;   /* [max_q][64] */
    float *highest, *sum;          /* [max_q] of a block */
    float *o, *more_o;             /* [max_q][dim] of a block */
    float *dots;                   /* [max_q][64] */
    uint8_t *p_pairs;              /* [max_q][64 * 4 bytes] */
    float *weights;                /* [max_q][64] */
    int32_t *p_high, *p_low;       /* [max_q][16 steps] */
    float *p_scale, *p_sum;        /* [max_q] */
    uint8_t *codes;                /* [64 * dim] */
    float *scale, *bias;           /* [dim / 32][64] */
    float *rows;                   /* [64][dim]; also two pairs of bf16 rows */
    float *wide;                   /* [64][64]: a part of a bf16 block as floats */
};

/* `ahead`: what will be read next lies so many bytes behind what this block's products read, and is fetched meanwhile. */
struct attention_block { const struct kv_format *format; struct kv_shape shape; const uint8_t *data; ptrdiff_t ahead; };

struct cpu_attention {
    /* Brings q (n_q vectors) into the forms that blocks of this format want. */
    void (*prepare)(struct attention_work *w, const struct kv_format *k, struct kv_shape shape);
    /* scores [n_q - q0][64] of the vectors from q0 on; rows that were not stored give anything. */
    void (*scores)(struct attention_work *w, const struct attention_block *k, int q0, float *scores);
    /* In place, scores to weights exp(score - highest) of the rows below n_rows, 0 behind them; gives both results. */
    void (*softmax)(float *scores, int n_rows, float *highest, float *sum);
    /* o [n_q - q0][dim] = sum over rows [r0, r1) of weight * row; the weights [n_q - q0][64] outside of them are 0. */
    void (*values)(struct attention_work *w, const struct attention_block *v, int q0, int r0, int r1, const float *p, float *o);
    /* (highest, sum, o) joined with the next partial result. */
    void (*merge)(float *highest, float *sum, float *o, float next_highest, float next_sum, const float *next_o, int dim);
};
extern const struct cpu_attention cpu_attention_portable, cpu_attention_avx2, cpu_attention_avx512, cpu_attention_avx512bf16,
    cpu_attention_neon;
#endif

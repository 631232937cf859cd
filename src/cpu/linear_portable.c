/* Portable matrix products: every representation, right everywhere, written so that a plain compiler vectorises it.
 *
 * Orders. Dense: element k of a row goes to sum k mod 16, ascending, product and sum rounded apart; the 16 sums are added as a
 * tree (distance 8, 4, 2, 1). Affine with int8 inputs: an exact dot per 32 k, times its scale, summed over the group's blocks;
 * acc += s * that; acc += b * (sum of the blocks' q8_sum). Affine with bf16 inputs: four sums per group by k mod 4, added
 * (0 + 1) + (2 + 3), then as before. */
#include <limits.h>
#include <string.h>

#include "cpu/isa.h"
#include "cpu/linear_affine.h"
#include "cpu/linear_call.h"

enum { SUMS = 16, ROWS = 16 };

static float tree(float *s) {
    for (int d = SUMS / 2; d > 0; d /= 2)
        for (int i = 0; i < d; i++) s[i] += s[i + d];
    return s[0];
}

static float dot_f32(const float *w, const float *x, int n) {
    float s[SUMS] = {0};
    int k = 0;
    for (; k + SUMS <= n; k += SUMS)
        for (int i = 0; i < SUMS; i++) s[i] += w[k + i] * x[k + i];
    for (int i = 0; k + i < n; i++) s[i] += w[k + i] * x[k + i];
    return tree(s);
}

static float dot_bf16(const float *w, const uint16_t *x, int n) {
    float s[SUMS] = {0};
    int k = 0;
    for (; k + SUMS <= n; k += SUMS)
        for (int i = 0; i < SUMS; i++) s[i] += w[k + i] * float_from_bf16(x[k + i]);
    for (int i = 0; k + i < n; i++) s[i] += w[k + i] * float_from_bf16(x[k + i]);
    return tree(s);
}

static size_t one_column(int n_rows, int n_in) { return (void)n_rows, (size_t)n_in * sizeof(float); }

static void run_f32_inputs(const struct linear_call *c, int col0, int col1) {
    for (int col = col0; col < col1; col++) {
        weight_decode(c->w->source, col, c->scratch);
        for (int i = 0; i < c->n_rows; i++) {
            float r = dot_f32(c->scratch, call_f32(c, i), c->w->n_in);
            call_store(c, i, col, 1, &r);
        }
    }
}

static void run_bf16_inputs(const struct linear_call *c, int col0, int col1) {
    for (int col = col0; col < col1; col++) {
        weight_decode(c->w->source, col, c->scratch);
        for (int i = 0; i < c->n_rows; i++) {
            float r = dot_bf16(c->scratch, call_bf16(c, i), c->w->n_in);
            call_store(c, i, col, 1, &r);
        }
    }
}

/* Codes of a block, [k][column]. */
static void unpack_plane(const uint8_t **in, int width, int shift, uint8_t *codes) {
    int per = 8 / width, mask = (1 << width) - 1;
    for (int s = 0; s < 8; s++)
        for (int c = 0; c < AFFINE_TILE; c++)
            for (int kk = 0; kk < 4; kk++)
                codes[(4 * s + kk) * AFFINE_TILE + c] |=
                    (uint8_t)(((*in)[s / per * 64 + 4 * c + kk] >> s % per * width & mask) << shift);
    *in += width * 64;
}

static void unpack_block(const uint8_t *in, int bits, uint8_t *codes) {
    memset(codes, 0, AFFINE_BLOCK_CODES);
    int main_bits = bits == 8 ? 8 : bits >= 4 ? 4 : 2;
    unpack_plane(&in, main_bits, 0, codes);
    if (bits > main_bits) unpack_plane(&in, bits - main_bits, main_bits, codes);
}

struct sums { float acc[AFFINE_TILE], t[4][AFFINE_TILE], x; };

static void block_q8(struct sums *s, const uint8_t *codes, const int8_t *x, float x_scale, float x_sum) {
    int32_t dot[AFFINE_TILE] = {0};
    for (int k = 0; k < AFFINE_BLOCK; k++)
        for (int c = 0; c < AFFINE_TILE; c++) dot[c] += codes[k * AFFINE_TILE + c] * x[k];
    for (int c = 0; c < AFFINE_TILE; c++) s->t[0][c] += (float)dot[c] * x_scale;
    s->x += x_sum;
}

static void block_bf16(struct sums *s, const uint8_t *codes, const uint16_t *x) {
    for (int k = 0; k < AFFINE_BLOCK; k++) {
        float v = float_from_bf16(x[k]);
        for (int c = 0; c < AFFINE_TILE; c++) s->t[k & 3][c] += (float)codes[k * AFFINE_TILE + c] * v;
        s->x += v;
    }
}

static void end_group(struct sums *s, const struct affine_shape *shape, const uint8_t *scales) {
    for (int c = 0; c < AFFINE_TILE; c++) {
        s->acc[c] += scale_value(scales, c, shape->scale) * ((s->t[0][c] + s->t[1][c]) + (s->t[2][c] + s->t[3][c]));
        s->acc[c] += scale_value(scales + shape->scale_bytes, c, shape->scale) * s->x;
    }
}

/* Up to ROWS rows of one tile: each block is unpacked once for all of them. */
static void run_tile(const struct linear_call *c, const struct affine_shape *shape, int col, int row0, int n_rows, int form) {
    struct sums sums[ROWS];
    uint8_t codes[AFFINE_BLOCK_CODES];
    const uint8_t *in = affine_tile(c->w, shape, col);
    memset(sums, 0, sizeof sums);
    for (int g = 0, block = 0; g < shape->n_groups; g++) {
        for (int i = 0; i < n_rows; i++) memset(sums[i].t, 0, sizeof sums[i].t), sums[i].x = 0;
        for (int b = 0; b < shape->group_blocks; b++, block++, in += shape->block_bytes) {
            unpack_block(in, shape->bits, codes);
            for (int i = 0; i < n_rows; i++) {
                int row = row0 + i;
                if (form == FORM_BF16) block_bf16(&sums[i], codes, call_bf16(c, row) + block * AFFINE_BLOCK);
                else block_q8(&sums[i], codes, call_q8(c, row) + block * AFFINE_BLOCK, call_q8_scale(c, row)[block],
                              call_q8_sum(c, row)[block]);
            }
        }
        for (int i = 0; i < n_rows; i++) end_group(&sums[i], shape, in);
        in += 2 * shape->scale_bytes;
    }
    int n = c->w->n_out - col < AFFINE_TILE ? c->w->n_out - col : AFFINE_TILE;
    for (int i = 0; i < n_rows; i++) call_store(c, row0 + i, col, n, sums[i].acc);
}

static void run_affine(const struct linear_call *c, int col0, int col1, int form) {
    struct affine_shape shape = affine_shape(c->w->source);
    for (int col = col0; col < col1; col += AFFINE_TILE)
        for (int row = 0; row < c->n_rows; row += ROWS)
            run_tile(c, &shape, col, row, c->n_rows - row < ROWS ? c->n_rows - row : ROWS, form);
}

static void run_affine_q8(const struct linear_call *c, int col0, int col1) { run_affine(c, col0, col1, FORM_Q8); }
static void run_affine_bf16(const struct linear_call *c, int col0, int col1) { run_affine(c, col0, col1, FORM_BF16); }

#define ANY .min_rows = 1, .max_rows = INT_MAX
static const struct linear_kernel affine_q8 = {
    .name = "affine int8", .repr = "affine", .layout = &cpu_layout_affine, .arithmetic = "portable int8 dots", .form = FORM_Q8, ANY,
    .tile = AFFINE_TILE, .run = run_affine_q8,
}, affine_bf16 = {
    .name = "affine bf16", .repr = "affine", .layout = &cpu_layout_affine, .arithmetic = "portable codes by bf16", .form = FORM_BF16,
    ANY, .tile = AFFINE_TILE, .run = run_affine_bf16,
}, bf16 = {
    .name = "bf16", .repr = "bf16", .arithmetic = "portable bf16", .form = FORM_BF16, ANY, .tile = 1,
    .scratch_bytes = one_column, .run = run_bf16_inputs,
}, any = {
    .name = "any", .arithmetic = "portable fp32", .form = FORM_F32, ANY, .tile = 1, .scratch_bytes = one_column,
    .run = run_f32_inputs,
};

const struct linear_kernel *const cpu_kernels_portable[] = {&affine_q8, &affine_bf16, &bf16, &any, NULL};

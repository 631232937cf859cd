/* Stored forms of attention rows: a list of formats, each owing both ways between a row of floats and its place in a block.
 *
 * A block holds the 64 rows of one page, of one kv head, of one side (K or V). Its bytes are laid out for the products that
 * attention makes of it, so only the functions here and the attention kernels know where a row lies.
 *
 * Invariants
 * 1. A row's stored form is a function of its values alone and never changes once written; rows may be written in any order.
 * 2. Writing a row may rewrite bytes that hold other rows of the same block: one thread at a time per block.
 * 3. A value that is not finite makes its group's elements, or the row's, NaN: a failure never turns into plausible numbers.
 * 4. Rows that were never written read as anything; nothing but their own lanes depends on them.
 *
 * Layouts (64 rows, D = head_dim)
 *   bf16    K [D/2][64][2]    V [32][D][2], the last index being the row's parity
 *   f32     K [D][64]         V [64][D]
 *   codes   Planes of 8, 4, 2 or 1 bits (6 = 4 + 2, 5 = 4 + 1, 3 = 2 + 1, the low bits first). Plane of w bits, n = 8 / w:
 *           K [D/(4n)][64][4]: bits t*w.. of byte j are element s*4n + t*4 + j; V [16/n][D][4]: row s*4n + t*4 + j.
 *   affine  codes; scales [D/group][64], biases [D/group][64], bf16: code * scale + bias
 *   turbo   K codes (signed ones + 127); scale s and zero z [D/32][64], f16: (code + z) * s.
 *           V codes; s [D/32][64], f16: center[code] * s, of the rotated row */
#ifndef QUANT_KV_H
#define QUANT_KV_H
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { KV_ROWS = 64, KV_MAX_DIM = 512 }; /* rows of a block; most values of a row */
enum kv_kind { KV_BF16, KV_F32, KV_AFFINE, KV_TURBO };

struct kv_shape { int bits, group, dim; }; /* bits and group mean nothing to bf16 and f32 */

struct kv_side {
    int (*legal)(struct kv_shape s);
    size_t (*block_bytes)(struct kv_shape s);                                     /* a multiple of 64 */
    void (*write_row)(uint8_t *block, struct kv_shape s, int row, const float *x); /* x [dim] */
    void (*read_row)(const uint8_t *block, struct kv_shape s, int row, float *x);  /* the value that attention uses */
    int rotated; /* attention sums the stored rows as they are, of kv_rotate(x), and turns the sum back */
};
struct kv_format { const char *name; enum kv_kind kind; struct kv_side k, v; };
extern const struct kv_format kv_bf16, kv_f32, kv_affine, kv_turbo;
extern const struct kv_format *const kv_formats[]; /* ends with NULL */
const struct kv_format *kv_format_find(const char *name);

/* What --kv-bits names: "f32", "16" (bf16), "8" "6" "5" "4" "3" "2" (affine), "turbo:k8v3". */
struct kv_scheme { const struct kv_format *k, *v; int k_bits, v_bits, group; };
int kv_scheme_parse(struct kv_scheme *out, const char *text, int group, struct weft_error *e);
/* Can rows of `dim` values be stored so? A sentence if not. */
int kv_scheme_check(const struct kv_scheme *s, int dim, struct weft_error *e);
/* "16", "f32", "8/64" (bits/group), "turbo:k8v3". */
void kv_scheme_name(const struct kv_scheme *s, char *out, size_t n_bytes);
static inline struct kv_shape kv_k_shape(const struct kv_scheme *s, int dim) {
    return (struct kv_shape){s->k_bits, s->group, dim};
}
static inline struct kv_shape kv_v_shape(const struct kv_scheme *s, int dim) {
    return (struct kv_shape){s->v_bits, s->group, dim};
}
size_t kv_k_bytes(const struct kv_scheme *s, int dim); /* of one block */
size_t kv_v_bytes(const struct kv_scheme *s, int dim);

/* Rows of affine blocks as MLX keeps them: packed codes [dim * bits / 8 bytes], scales and biases [dim / group], bf16. */
void kv_affine_export(const uint8_t *block, int is_v, struct kv_shape s, int row, uint8_t *packed,
                      uint16_t *scales, uint16_t *biases);
void kv_affine_import(uint8_t *block, int is_v, struct kv_shape s, int row, const uint8_t *packed, const uint16_t *scales,
                      const uint16_t *biases);

/* Where the codes' planes lie; for kernels. */
struct kv_planes { int n; int bits[2], shift[2]; size_t offset[2]; size_t bytes; };
struct kv_planes kv_planes_of(struct kv_shape s);

/* TurboQuant's rotation of a row, y = H(sign x) / sqrt(dim), and its inverse, in place. */
void kv_rotate(float *x, int dim);
void kv_rotate_back(float *x, int dim);
void kv_turbo_centers(int bits, float *out); /* [2^bits], ascending */
#endif

#include "quant/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/affine.h"
#include "quant/convert.h"

/* What attention kernels take: whole vectors. */
static int dim_ok(struct kv_shape s) { return s.dim > 0 && s.dim <= KV_MAX_DIM && s.dim % 16 == 0; }

static size_t bf16_bytes(struct kv_shape s) { return (size_t)s.dim * KV_ROWS * 2; }
static size_t f32_bytes(struct kv_shape s) { return (size_t)s.dim * KV_ROWS * 4; }

static void bf16_write_k(uint8_t *block, struct kv_shape s, int row, const float *x) {
    for (int d = 0; d < s.dim; d++) {
        uint16_t h = bf16_from_float(x[d]);
        memcpy(block + ((size_t)(d / 2) * KV_ROWS * 2 + (size_t)row * 2 + (size_t)(d % 2)) * 2, &h, 2);
    }
}

static void bf16_read_k(const uint8_t *block, struct kv_shape s, int row, float *x) {
    for (int d = 0; d < s.dim; d++)
        x[d] = float_from_bf16(load_u16(block + ((size_t)(d / 2) * KV_ROWS * 2 + (size_t)row * 2 + (size_t)(d % 2)) * 2));
}

static size_t bf16_v_at(struct kv_shape s, int row, int d) {
    return (((size_t)(row / 2) * (size_t)s.dim + (size_t)d) * 2 + (size_t)(row % 2)) * 2;
}

static void bf16_write_v(uint8_t *block, struct kv_shape s, int row, const float *x) {
    for (int d = 0; d < s.dim; d++) {
        uint16_t h = bf16_from_float(x[d]);
        memcpy(block + bf16_v_at(s, row, d), &h, 2);
    }
}

static void bf16_read_v(const uint8_t *block, struct kv_shape s, int row, float *x) {
    for (int d = 0; d < s.dim; d++) x[d] = float_from_bf16(load_u16(block + bf16_v_at(s, row, d)));
}

static void f32_write_k(uint8_t *block, struct kv_shape s, int row, const float *x) {
    for (int d = 0; d < s.dim; d++) memcpy(block + ((size_t)d * KV_ROWS + (size_t)row) * 4, &x[d], 4);
}

static void f32_read_k(const uint8_t *block, struct kv_shape s, int row, float *x) {
    for (int d = 0; d < s.dim; d++) x[d] = load_f32(block + ((size_t)d * KV_ROWS + (size_t)row) * 4);
}

static void f32_write_v(uint8_t *block, struct kv_shape s, int row, const float *x) {
    memcpy(block + (size_t)row * (size_t)s.dim * 4, x, (size_t)s.dim * 4);
}

static void f32_read_v(const uint8_t *block, struct kv_shape s, int row, float *x) {
    memcpy(x, block + (size_t)row * (size_t)s.dim * 4, (size_t)s.dim * 4);
}

const struct kv_format kv_bf16 = {
    .name = "bf16", .kind = KV_BF16,
    .k = {dim_ok, bf16_bytes, bf16_write_k, bf16_read_k, 0},
    .v = {dim_ok, bf16_bytes, bf16_write_v, bf16_read_v, 0},
};
const struct kv_format kv_f32 = {
    .name = "f32", .kind = KV_F32,
    .k = {dim_ok, f32_bytes, f32_write_k, f32_read_k, 0},
    .v = {dim_ok, f32_bytes, f32_write_v, f32_read_v, 0},
};
const struct kv_format *const kv_formats[] = {&kv_bf16, &kv_f32, &kv_affine, &kv_turbo, NULL};

const struct kv_format *kv_format_find(const char *name) {
    for (int i = 0; kv_formats[i]; i++)
        if (strcmp(kv_formats[i]->name, name) == 0) return kv_formats[i];
    return NULL;
}

int kv_scheme_parse(struct kv_scheme *out, const char *text, int group, struct weft_error *e) {
    *out = (struct kv_scheme){&kv_bf16, &kv_bf16, 0, 0, 0};
    int k = 0, v = 0, n = 0;
    if (strcmp(text, "16") == 0) return 0;
    if (strcmp(text, "f32") == 0) {
        out->k = out->v = &kv_f32;
        return 0;
    }
    if (sscanf(text, "turbo:k%1dv%1d%n", &k, &v, &n) == 2 && !text[n]) {
        *out = (struct kv_scheme){&kv_turbo, &kv_turbo, k, v, 32};
        if ((k == 8 || k == 5 || k == 4 || k == 2) && (v == 8 || v == 5 || v == 4 || v == 3 || v == 2)) return 0;
        return error_set(e, WEFT_ERROR_INPUT, "KV scheme \"%s\": keys take 8, 5, 4 or 2 bits, values 8, 5, 4, 3 or 2", text);
    }
    if (!text[0] || text[1] || !affine_bits_ok(text[0] - '0'))
        return error_set(e, WEFT_ERROR_INPUT, "KV scheme \"%s\" is none of 2, 3, 4, 5, 6, 8, 16, f32, turbo:kNvM", text);
    if (!affine_group_ok(group))
        return error_set(e, WEFT_ERROR_INPUT, "KV group size %d is not 32, 64 or 128", group);
    *out = (struct kv_scheme){&kv_affine, &kv_affine, text[0] - '0', text[0] - '0', group};
    return 0;
}

int kv_scheme_check(const struct kv_scheme *s, int dim, struct weft_error *e) {
    if (s->k->k.legal(kv_k_shape(s, dim)) && s->v->v.legal(kv_v_shape(s, dim))) return 0;
    char name[64];
    kv_scheme_name(s, name, sizeof name);
    return error_set(e, WEFT_ERROR_SUPPORT, "KV scheme %s does not fit a head of %d values", name, dim);
}

void kv_scheme_name(const struct kv_scheme *s, char *out, size_t n_bytes) {
    if (s->k->kind == KV_TURBO) snprintf(out, n_bytes, "turbo:k%dv%d", s->k_bits, s->v_bits);
    else if (s->k->kind == KV_AFFINE) snprintf(out, n_bytes, "%d/%d", s->k_bits, s->group);
    else snprintf(out, n_bytes, "%s", s->k->kind == KV_F32 ? "f32" : "16");
}

size_t kv_k_bytes(const struct kv_scheme *s, int dim) { return s->k->k.block_bytes(kv_k_shape(s, dim)); }
size_t kv_v_bytes(const struct kv_scheme *s, int dim) { return s->v->v.block_bytes(kv_v_shape(s, dim)); }

/* Stored forms of attention rows. */
#include <math.h>

#include "base/file.h"
#include "base/json.h"
#include "help_ops.h"
#include "quant/affine.h"
#include "quant/convert.h"
#include "quant/kv.h"

static const int affine_bits[] = {8, 6, 5, 4, 3, 2};
static const int groups[] = {32, 64, 128};

static uint8_t *block_new(size_t bytes) {
    uint8_t *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0xff, bytes);
    return p;
}

/* Rows in an order that is not theirs: writing one must leave the others alone. */
static int shuffled(int i) { return (i * 37 + 11) % KV_ROWS; }

static void bf16_and_f32_rows_come_back_as_they_are(void **state) {
    (void)state;
    enum { D = 80 };
    for (int side = 0; side < 2; side++)
        for (int kind = 0; kind < 2; kind++) {
            const struct kv_format *f = kind ? &kv_f32 : &kv_bf16;
            const struct kv_side *s = side ? &f->v : &f->k;
            struct kv_shape shape = {.dim = D};
            assert_true(s->legal(shape));
            uint64_t seed = 1;
            float x[KV_ROWS][D], y[D];
            uint8_t *block = block_new(s->block_bytes(shape));
            ops_fill(&seed, x[0], KV_ROWS * D, 3.0f);
            for (int i = 0; i < KV_ROWS; i++) s->write_row(block, shape, shuffled(i), x[shuffled(i)]);
            for (int r = 0; r < KV_ROWS; r++) {
                s->read_row(block, shape, r, y);
                for (int d = 0; d < D; d++)
                    assert_true(y[d] == (kind ? x[r][d] : float_from_bf16(bf16_from_float(x[r][d]))));
            }
            free(block);
        }
}

static void affine_rows_hold_what_mlx_would_hold_and_leave_their_neighbours_alone(void **state) {
    (void)state;
    enum { D = 128 };
    for (int side = 0; side < 2; side++)
        for (int b = 0; b < 6; b++)
            for (int g = 0; g < 3; g++) {
                struct kv_shape s = {affine_bits[b], groups[g], D};
                const struct kv_side *f = side ? &kv_affine.v : &kv_affine.k;
                assert_true(f->legal(s));
                uint64_t seed = (uint64_t)(b * 3 + g);
                float x[KV_ROWS][D], y[D];
                uint8_t *block = block_new(f->block_bytes(s)), *copy = block_new(f->block_bytes(s));
                ops_fill(&seed, x[0], KV_ROWS * D, 2.0f);
                for (int i = 0; i < KV_ROWS; i++) f->write_row(block, s, shuffled(i), x[shuffled(i)]);
                for (int r = 0; r < KV_ROWS; r++) {
                    uint8_t packed[D], want[D], want_scales[8], want_biases[8];
                    uint16_t scales[4], biases[4];
                    float rounded[D];
                    for (int d = 0; d < D; d++) rounded[d] = float_from_bf16(bf16_from_float(x[r][d]));
                    affine_encode_row(rounded, D, s.bits, s.group, AFFINE_METAL, DTYPE_BF16, want, want_scales, want_biases);
                    kv_affine_export(block, side, s, r, packed, scales, biases);
                    assert_memory_equal(packed, want, (size_t)(D * s.bits / 8));
                    assert_memory_equal(scales, want_scales, (size_t)(D / s.group * 2));
                    assert_memory_equal(biases, want_biases, (size_t)(D / s.group * 2));
                    kv_affine_import(copy, side, s, r, packed, scales, biases);
                    uint8_t codes[D];
                    affine_unpack(packed, s.bits, 0, D, codes);
                    f->read_row(block, s, r, y);
                    for (int d = 0; d < D; d++) {
                        float scale = float_from_bf16(scales[d / s.group]), bias = float_from_bf16(biases[d / s.group]);
                        assert_true(y[d] == (float)codes[d] * scale + bias);
                        assert_true(fabsf(y[d] - rounded[d]) <= fabsf(scale) * 1.05f + 0.01f * fabsf(bias));
                    }
                }
                assert_memory_equal(copy, block, f->block_bytes(s)); /* a block of rows that came from a file is the same block */
                free(block), free(copy);
            }
}

/* MLX's own buffers: see goldens/mlx_quantize. Every bf16 case whose K is a legal head. */
static void affine_rows_equal_the_recorded_buffers_of_mlx(void **state) {
    (void)state;
    const char *index = help_shared("goldens/mlx_quantize/index.json"), *data = help_shared("goldens/mlx_quantize/data.bin");
    if (!index || !data) skip();
    json_t *cases;
    struct file_map map;
    struct weft_error e;
    assert_int_equal(json_read_file(&cases, index, 1 << 24, &e), 0);
    assert_int_equal(file_open_map(&map, data, &e), 0);
    int n_cases = 0, n_codes_off = 0, n_codes = 0, n_scales_off = 0, n_groups = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        if (strcmp(json_string_value(json_object_get(c, "mode")), "affine") != 0) continue;
        if (strcmp(json_string_value(json_object_get(c, "dt")), "bf16") != 0) continue;
        struct kv_shape s = {(int)json_integer_value(json_object_get(c, "bits")),
                             (int)json_integer_value(json_object_get(c, "gs")), 0};
        const json_t *w = json_object_get(c, "w"), *shape = json_object_get(w, "shape");
        int n_rows = (int)json_integer_value(json_array_get(shape, 0));
        s.dim = (int)json_integer_value(json_array_get(shape, 1));
        if (!kv_affine.k.legal(s)) continue;
        const uint8_t *at[4];
        const char *const fields[4] = {"w", "q", "s", "b"};
        for (int f = 0; f < 4; f++) at[f] = map.data + json_integer_value(json_object_get(json_object_get(c, fields[f]), "off"));
        uint8_t *block = block_new(kv_affine.k.block_bytes(s));
        for (int r = 0; r < n_rows && r < KV_ROWS; r++) {
            float x[KV_MAX_DIM];
            int finite = 1, negative = 0;
            for (int d = 0; d < s.dim; d++) x[d] = float_from_bf16(load_u16(at[0] + ((size_t)r * (size_t)s.dim + (size_t)d) * 2));
            for (int d = 0; d < s.dim; d++) finite &= isfinite(x[d]) != 0;
            for (int g = 0; g < s.dim / s.group; g++) { /* the recorded CPU path differs in groups that are all negative */
                int all = 1;
                for (int d = 0; d < s.group; d++) all &= x[g * s.group + d] < 0.0f;
                negative |= all;
            }
            if (!finite || negative) continue;
            kv_affine.k.write_row(block, s, r, x);
            uint8_t packed[KV_MAX_DIM];
            uint16_t scales[16], biases[16];
            kv_affine_export(block, 0, s, r, packed, scales, biases);
            size_t row_bytes = (size_t)(s.dim * s.bits / 8);
            uint8_t codes[KV_MAX_DIM], want[KV_MAX_DIM];
            affine_unpack(packed, s.bits, 0, s.dim, codes);
            affine_unpack(at[1] + (size_t)r * row_bytes, s.bits, 0, s.dim, want);
            for (int g = 0; g < s.dim / s.group; g++, n_groups++) { /* ... in exact halves, by one step, and where a half decides
                                                                       the scale */
                size_t at_scale = ((size_t)r * (size_t)(s.dim / s.group) + (size_t)g) * 2;
                assert_int_equal(biases[g], load_u16(at[3] + at_scale));
                if (scales[g] != load_u16(at[2] + at_scale)) {
                    n_scales_off++;
                    continue;
                }
                for (int d = g * s.group; d < (g + 1) * s.group; d++, n_codes++) {
                    assert_true(abs(codes[d] - want[d]) <= 1);
                    n_codes_off += codes[d] != want[d];
                }
            }
        }
        n_cases++;
        free(block);
    }
    assert_true(n_cases > 20 && n_codes_off * 100 < n_codes && n_scales_off * 20 < n_groups);
    json_decref(cases), file_close_map(&map);
}

static double turbo_error(const struct kv_side *side, struct kv_shape s, uint64_t seed) {
    float x[KV_MAX_DIM], y[KV_MAX_DIM];
    double off = 0.0, all = 0.0;
    uint8_t *block = block_new(side->block_bytes(s));
    for (int i = 0; i < KV_ROWS; i++) {
        uint64_t row_seed = seed + (uint64_t)shuffled(i);
        ops_fill(&row_seed, x, (size_t)s.dim, 1.0f);
        side->write_row(block, s, shuffled(i), x);
    }
    for (int r = 0; r < KV_ROWS; r++) {
        uint64_t row_seed = seed + (uint64_t)r;
        ops_fill(&row_seed, x, (size_t)s.dim, 1.0f);
        side->read_row(block, s, r, y);
        for (int d = 0; d < s.dim; d++) off += pow((double)(x[d] - y[d]), 2), all += pow((double)x[d], 2);
    }
    free(block);
    return sqrt(off / all);
}

static void turbo_rows_are_as_near_as_their_bits_allow(void **state) {
    (void)state;
    static const struct { int bits; double bound; } keys[] = {{8, 0.006}, {5, 0.045}, {4, 0.09}, {2, 0.45}};
    /* Lloyd-Max of a Gaussian: mean squared errors .1175 .0345 .0095 .0025, and 4e-5 with 8 bits */
    static const struct { int bits; double bound; } values[] = {{8, 0.009}, {5, 0.052}, {4, 0.1}, {3, 0.19}, {2, 0.345}};
    for (int dim = 64; dim <= 512; dim *= 2) {
        for (int i = 0; i < 4; i++) {
            double error = turbo_error(&kv_turbo.k, (struct kv_shape){keys[i].bits, 32, dim}, 5);
            if (!(error < keys[i].bound && error > keys[i].bound * 0.5)) print_error("keys %d: %g\n", keys[i].bits, error);
            assert_true(error < keys[i].bound && error > keys[i].bound * 0.5);
        }
        for (int i = 0; i < 5; i++) {
            double error = turbo_error(&kv_turbo.v, (struct kv_shape){values[i].bits, 32, dim}, 6);
            if (!(error < values[i].bound && error > values[i].bound * 0.5))
                print_error("values %d: %g\n", values[i].bits, error);
            assert_true(error < values[i].bound && error > values[i].bound * 0.5);
        }
    }
}

static void turbo_takes_rows_that_its_design_cannot_hold(void **state) {
    (void)state;
    static const float rows[] = {0.0f, 1.0f, -3.0f, 1e-30f, 1e4f};
    static const int bits[] = {8, 5, 4, 2};
    float x[64], y[64];
    uint8_t *block = block_new(1 << 16);
    for (int i = 0; i < 5; i++)
        for (int b = 0; b < 4; b++) {
            for (int d = 0; d < 64; d++) x[d] = rows[i]; /* constant: the design's zero point would be infinite */
            kv_turbo.k.write_row(block, (struct kv_shape){bits[b], 32, 64}, 3, x);
            kv_turbo.k.read_row(block, (struct kv_shape){bits[b], 32, 64}, 3, y);
            for (int d = 0; d < 64; d++) assert_true(fabsf(y[d] - x[d]) <= 1e-3f * fabsf(x[d]) + 1e-6f);
        }
    free(block);
}

static void a_value_that_is_not_finite_comes_back_as_nan_in_every_format(void **state) {
    (void)state;
    static const char *const schemes[] = {"16", "f32", "8",          "6",          "5",          "4",
                                          "3",  "2",   "turbo:k8v8", "turbo:k5v5", "turbo:k4v4", "turbo:k2v2"};
    for (int i = 0; i < 12; i++)
        for (int is_v = 0; is_v < 2; is_v++)
            for (int bad = 0; bad < 2; bad++) {
                struct kv_scheme s;
                struct weft_error e;
                float x[64], y[64];
                assert_int_equal(kv_scheme_parse(&s, schemes[i], 32, &e), 0);
                const struct kv_side *side = is_v ? &s.v->v : &s.k->k;
                struct kv_shape shape = is_v ? kv_v_shape(&s, 64) : kv_k_shape(&s, 64);
                uint8_t *block = block_new(side->block_bytes(shape));
                for (int d = 0; d < 64; d++) x[d] = (float)d * 0.1f;
                x[41] = bad ? NAN : INFINITY;
                side->write_row(block, shape, 7, x);
                side->read_row(block, shape, 7, y);
                assert_false(isfinite(y[41]));
                free(block);
            }
}

static void the_rotation_and_its_inverse_cancel_and_keep_lengths(void **state) {
    (void)state;
    for (int dim = 64; dim <= 512; dim *= 2) {
        float x[512], y[512];
        double before = 0.0, after = 0.0;
        uint64_t seed = 3;
        ops_fill(&seed, x, 512, 1.0f);
        memcpy(y, x, sizeof x);
        kv_rotate(y, dim);
        for (int d = 0; d < dim; d++) before += (double)x[d] * (double)x[d], after += (double)y[d] * (double)y[d];
        assert_true(fabs(before - after) < 1e-4 * before && fabsf(y[0] - x[0]) > 0.0f);
        kv_rotate_back(y, dim);
        for (int d = 0; d < dim; d++) assert_true(fabsf(y[d] - x[d]) < 1e-5f);
    }
}

static void the_signs_are_those_that_mlx_draws(void **state) {
    (void)state;
    FILE *f = NULL;
    const char *path = help_shared("goldens/mlx_quantize/signs.txt");
    if (!path || !(f = fopen(path, "r"))) skip();
    int dim;
    while (fscanf(f, "%d", &dim) == 1) {
        float x[512] = {0}, sum[512];
        /* The first output of the transform is the sum of sign * x / sqrt(dim). */
        for (int d = 0; d < dim; d++) {
            int sign;
            assert_int_equal(fscanf(f, "%d", &sign), 1);
            memset(x, 0, sizeof x);
            x[d] = 1.0f;
            memcpy(sum, x, sizeof x);
            kv_rotate(sum, dim);
            assert_true((sum[0] > 0.0f) == (sign > 0));
        }
    }
    fclose(f);
}

static void schemes_parse_and_print_and_refuse(void **state) {
    (void)state;
    static const struct { const char *text, *name; int group; } good[] = {
        {"16", "16", 64}, {"f32", "f32", 64}, {"8", "8/64", 64}, {"3", "3/128", 128}, {"turbo:k8v3", "turbo:k8v3", 64}};
    static const char *const bad[] = {"",         "7",           "1",           "16x", "turbo:k3v3", "turbo:k8v6",
                                      "turbo:k8", "turbo:k8v3x", "turbo:k-1v3", "8 ",  "q8"};
    struct kv_scheme s;
    struct weft_error e;
    char name[64];
    for (int i = 0; i < 5; i++) {
        assert_int_equal(kv_scheme_parse(&s, good[i].text, good[i].group, &e), 0);
        kv_scheme_name(&s, name, sizeof name);
        assert_string_equal(name, good[i].name);
        assert_int_equal(kv_scheme_check(&s, 256, &e), 0);
    }
    for (int i = 0; i < 11; i++) assert_true(kv_scheme_parse(&s, bad[i], 64, &e) < 0);
    assert_true(kv_scheme_parse(&s, "8", 48, &e) < 0);
    assert_int_equal(kv_scheme_parse(&s, "8", 128, &e), 0);
    assert_true(kv_scheme_check(&s, 192, &e) < 0);
    assert_int_equal(kv_scheme_parse(&s, "turbo:k8v3", 64, &e), 0);
    assert_true(kv_scheme_check(&s, 80, &e) < 0);
    assert_int_equal(kv_k_bytes(&s, 256) + kv_v_bytes(&s, 256), 400 * KV_ROWS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_and_f32_rows_come_back_as_they_are),
        cmocka_unit_test(affine_rows_hold_what_mlx_would_hold_and_leave_their_neighbours_alone),
        cmocka_unit_test(affine_rows_equal_the_recorded_buffers_of_mlx),
        cmocka_unit_test(turbo_rows_are_as_near_as_their_bits_allow),
        cmocka_unit_test(turbo_takes_rows_that_its_design_cannot_hold),
        cmocka_unit_test(a_value_that_is_not_finite_comes_back_as_nan_in_every_format),
        cmocka_unit_test(the_rotation_and_its_inverse_cancel_and_keep_lengths),
        cmocka_unit_test(the_signs_are_those_that_mlx_draws),
        cmocka_unit_test(schemes_parse_and_print_and_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

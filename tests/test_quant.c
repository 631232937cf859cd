#include "help_test.h"

#include <math.h>

#include "base/file.h"
#include "base/json.h"
#include "quant/affine.h"
#include "quant/convert.h"
#include "quant/quant.h"

static float from(enum dtype t, const uint8_t *p, int64_t i) {
    return t == DTYPE_F32 ? load_f32(p + 4 * i) : t == DTYPE_BF16 ? float_from_bf16(load_u16(p + 2 * i)) : float_from_f16(load_u16(p + 2 * i));
}

/* ---- conversions */

static void half_conversions_are_exact_and_round_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float v = float_from_f16((uint16_t)h), b = float_from_bf16((uint16_t)h);
        if (isnan(v)) assert_int_equal(f16_from_float(v) & 0x7e00, 0x7e00);
        else assert_int_equal(f16_from_float(v), h);
        if (isnan(b)) assert_int_equal(bf16_from_float(b), 0x7fc0);
        else assert_int_equal(bf16_from_float(b), h);
        if (h >= 0x7bff || isnan(v)) continue;
        float next = float_from_f16((uint16_t)(h + 1)), half = (v + next) / 2; /* exact in float */
        assert_int_equal(f16_from_float(half), h & 1 ? h + 1 : h);
        assert_int_equal(f16_from_float(nextafterf(half, 0)), h);
        assert_int_equal(f16_from_float(nextafterf(half, 1e9f)), h + 1);
        assert_int_equal(f16_from_float(-half), 0x8000 | (h & 1 ? h + 1 : h));
    }
    assert_true(float_from_f16(0x3555) == 0x1.554p-2f && float_from_f16(1) == 0x1p-24f && float_from_f16(0x7bff) == 65504);
    assert_int_equal(f16_from_float(65519.99f), 0x7bff);
    assert_int_equal(f16_from_float(65520), 0x7c00);
    assert_int_equal(f16_from_float(INFINITY), 0x7c00);
    assert_int_equal(bf16_from_float(3.4e38f), 0x7f80);
    assert_int_equal(bf16_from_float(1.00390625f), 0x3f80);
    assert_int_equal(bf16_from_float(1.01171875f), 0x3f82);
}

static void eight_bit_floats_are_exact_and_saturate(void **state) {
    (void)state;
    for (int h = 0; h < 256; h++) {
        float v = float_from_e4m3((uint8_t)h);
        if ((h & 127) == 127) { assert_true(isnan(v)); continue; }
        assert_int_equal(e4m3_from_float(v), h);
        if ((h & 127) >= 126) continue;
        float half = (v + float_from_e4m3((uint8_t)(h + 1))) / 2;
        assert_int_equal(e4m3_from_float(half), h & 1 ? h + 1 : h);
        assert_int_equal(e4m3_from_float(half * 1.0001f), h + 1);
        assert_int_equal(e4m3_from_float(half * 0.9999f), h);
    }
    assert_true(float_from_e4m3(0x7e) == 448 && float_from_e4m3(1) == 0x1p-9f && float_from_e4m3(8) == 0x1p-6f);
    assert_int_equal(e4m3_from_float(1e9f), 0x7e);
    assert_int_equal(e4m3_from_float(-INFINITY), 0xfe);
    assert_true(float_from_e8m0(127) == 1 && float_from_e8m0(0) == 0x1p-127f && float_from_e8m0(254) == 0x1p127f);
    assert_true(isinf(float_from_e8m0(255)));
}

/* ---- the affine encoder */

static void the_packing_is_one_stream_of_bits_lowest_first(void **state) {
    (void)state;
    static const struct { int bits; uint8_t codes[8], bytes[8]; } cases[] = {
        {3, {1, 2, 3, 4, 5, 6, 7, 0}, {0xd1, 0x58, 0x1f}},
        {5, {1, 2, 3, 4, 5, 6, 7, 8}, {0x41, 0x0c, 0x52, 0xcc, 0x41}},
        {6, {1, 2, 3, 63}, {0x81, 0x30, 0xfc}},
        {4, {0, 1, 2, 3, 4, 5, 6, 7}, {0x10, 0x32, 0x54, 0x76}},
        {2, {0, 1, 2, 3, 0, 1, 2, 3}, {0xe4, 0xe4}},
        {8, {9, 1, 2, 3, 0, 1, 2, 255}, {9, 1, 2, 3, 0, 1, 2, 255}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t codes[32] = {0}, row[33] = {0}, back[32];
        memcpy(codes, cases[i].codes, 8);
        affine_pack(codes, 32, cases[i].bits, row + 1); /* any address */
        assert_memory_equal(row + 1, cases[i].bytes, (size_t)cases[i].bits);
        affine_unpack(row + 1, cases[i].bits, 0, 32, back);
        assert_memory_equal(back, codes, 32);
    }
    for (int bits = 2; bits <= 8; bits++) {
        if (!affine_bits_ok(bits)) continue;
        uint8_t codes[96], row[96], back[96];
        for (int i = 0; i < 96; i++) codes[i] = (uint8_t)(i * 37 + i / 7) & (uint8_t)((1 << bits) - 1);
        affine_pack(codes, 96, bits, row);
        affine_unpack(row, bits, 0, 96, back);
        assert_memory_equal(back, codes, 96);
        affine_unpack(row, bits, 40, 16, back);
        assert_memory_equal(back, codes + 40, 16);
    }
}

static void the_worked_example_of_the_format_comes_out(void **state) {
    (void)state;
    static const struct { int bits; uint32_t w0, w1; uint16_t s0, s1; } cases[] = {
        {2, 0xb6dcb6df, 0xc72db72d, 0xbec8, 0x3ec8}, {3, 0xf078ceaf, 0x50f19d5e, 0xbe48, 0x3e48}, {4, 0x7d38e4af, 0x8e4af5b1, 0xbdc8, 0x3dc8},
        {5, 0x8b1ea29f, 0x3faec276, 0xbd48, 0x3d48}, {6, 0xa2e91a3f, 0x5b447332, 0xbcc8, 0x3cc8}, {8, 0xe643a1ff, 0x6ecd2988, 0xbbc8, 0x3bc5},
    };
    float x[128];
    for (int i = 0; i < 128; i++) x[i] = (float)(37 * i % 101 - 50) / 64;
    for (int k = 0; k < 12; k++) {
        uint8_t row[128], s[4], b[4];
        affine_encode_row(x, 128, cases[k / 2].bits, 64, k % 2 ? AFFINE_CPU : AFFINE_METAL, DTYPE_BF16, row, s, b);
        assert_int_equal(load_u32(row), cases[k / 2].w0);
        assert_int_equal(load_u32(row + 4), cases[k / 2].w1);
        assert_int_equal(load_u16(s), cases[k / 2].s0);
        assert_int_equal(load_u16(s + 2), cases[k / 2].s1);
        assert_int_equal(load_u16(b), 0x3f48);
        assert_int_equal(load_u16(b + 2), 0xbf48);
    }
}

/* Four bits, groups of 64, bf16: scale, bias and the codes that occur. */
static void edge(float (*value)(int), enum affine_path path, uint16_t scale, uint16_t bias, int least, int most) {
    float x[64];
    uint8_t row[32], s[2], b[2], codes[64];
    for (int i = 0; i < 64; i++) x[i] = value(i);
    affine_encode_row(x, 64, 4, 64, path, DTYPE_BF16, row, s, b);
    assert_int_equal(load_u16(s), scale);
    assert_int_equal(load_u16(b), bias);
    affine_unpack(row, 4, 0, 64, codes);
    int low = 15, high = 0;
    for (int i = 0; i < 64; i++) low = codes[i] < low ? codes[i] : low, high = codes[i] > high ? codes[i] : high;
    assert_int_equal(low, least);
    assert_int_equal(high, most);
}
static float zero(int i) { (void)i; return 0; }
static float one(int i) { (void)i; return 1; }
static float minus_one(int i) { (void)i; return -1; }
static float small(int i) { (void)i; return 3e-8f; }
static float minus_small(int i) { (void)i; return -3e-8f; }
static float five_once(int i) { return i == 9 ? 5 : 0; }
static float minus_five_once(int i) { return i == 9 ? -5 : 0; }
static float falling(int i) { return -2 + (float)i / 63; }
static float rising(int i) { return 1 + (float)i / 63; }
static float some_nan(int i) { return i == 3 ? NAN : i == 9 ? 5 : 0; }

static void groups_at_the_edges_are_encoded_as_mlx_does(void **state) {
    (void)state;
    for (int path = AFFINE_METAL; path <= AFFINE_CPU; path++) {
        edge(zero, path, 0xb3d7, 0, 0, 0);
        edge(one, path, 0xb3d7, 0x3f80, 0, 0);
        edge(small, path, 0xb3d7, 0, 0, 0);
        edge(five_once, path, 0xbeab, 0x40a0, 0, 15);
        edge(minus_five_once, path, 0x3eab, 0xc0a0, 0, 15);
        edge(rising, path, 0xbd89, 0x4000, 0, 15);
        edge(some_nan, path, 0xbeab, 0x40a0, 0, 15);
    }
    edge(minus_one, AFFINE_CPU, 0xb3d7, 0xbf80, 0, 0);
    edge(minus_one, AFFINE_METAL, 0x3d89, 0xbf80, 0, 0);
    edge(minus_small, AFFINE_CPU, 0xb3d7, 0, 0, 0);
    edge(minus_small, AFFINE_METAL, 0x33d7, 0, 0, 0);
    edge(falling, AFFINE_CPU, 0x3d89, 0xc000, 0, 15);
    edge(falling, AFFINE_METAL, 0x3e09, 0xc000, 0, 7);
}

/* ---- goldens beside the repository */

static const uint8_t *golden(const json_t *o, const char *key, const uint8_t *data, int64_t *n) {
    const json_t *a = json_object_get(o, key), *shape = json_object_get(a, "shape");
    *n = 1;
    for (size_t i = 0; i < json_array_size(shape); i++) *n *= json_integer_value(json_array_get(shape, i));
    return a ? data + json_integer_value(json_object_get(a, "off")) : NULL;
}

/* Bytes of two arrays of T, except that any NaN equals any. */
static int same(enum dtype t, const uint8_t *a, const uint8_t *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float x = from(t, a, i), y = from(t, b, i);
        if (memcmp(&x, &y, 4) != 0 && !(isnan(x) && isnan(y))) return 0;
    }
    return 1;
}

static void check_affine_case(const json_t *o, const uint8_t *data, enum dtype t) {
    int bits = (int)json_integer_value(json_object_get(o, "bits")), group = (int)json_integer_value(json_object_get(o, "gs"));
    int64_t n, n_q, n_s, n_b, n_y;
    const uint8_t *w = golden(o, "w", data, &n), *q = golden(o, "q", data, &n_q), *s = golden(o, "s", data, &n_s);
    const uint8_t *b = golden(o, "b", data, &n_b), *y = golden(o, "y", data, &n_y);
    float *x = malloc((size_t)n * 4);
    uint8_t *row = malloc((size_t)n), *scales = malloc((size_t)n_s * 4), *biases = malloc((size_t)n_s * 4);
    for (int64_t i = 0; i < n; i++) x[i] = from(t, w, i);
    affine_encode_row(x, n, bits, group, AFFINE_CPU, t, row, scales, biases);
    if (memcmp(row, q, (size_t)n_q * 4)) fail_msg("%s %s %d bits, groups of %d", json_string_value(json_object_get(o, "name")), dtype_name(t), bits, group);
    assert_true(same(t, scales, s, n_s) && same(t, biases, b, n_b));
    if (y) { /* decode; MLX's CPU rounds product and sum to T, we keep floats: compare where T is F32 */
        struct weight m = {.repr = representation_find("affine"), .name = "w", .file = "f", .n_rows = 1, .n_cols = n, .dtype = DTYPE_U32,
                           .bits = bits, .group = group, .data = q, .row_bytes = (size_t)n_q * 4, .scale_dtype = t, .scales = s,
                           .biases = b, .scale_row_bytes = (size_t)n_s * (size_t)dtype_bytes(t)};
        weight_decode(&m, 0, x);
        for (int64_t i = 0; i < n && t == DTYPE_F32; i++) assert_true(same(t, (uint8_t *)&x[i], y + 4 * i, 1));
    }
    free(x), free(row), free(scales), free(biases);
}

static void check_mx_case(const json_t *o, const uint8_t *data, enum dtype t, const char *mode) {
    int64_t n, n_q, n_s, n_y;
    golden(o, "w", data, &n);
    const uint8_t *q = golden(o, "q", data, &n_q), *s = golden(o, "s", data, &n_s), *y = golden(o, "y", data, &n_y);
    if (!y) return;
    int group = mode[0] == 'n' ? 16 : 32, bits = mode[4] == '8' ? 8 : 4;
    struct weight m = {.repr = representation_find(mode), .name = "w", .file = "f", .n_rows = 1, .n_cols = n, .dtype = DTYPE_U32,
                       .bits = bits, .group = group, .data = q, .row_bytes = (size_t)n_q * 4, .scale_dtype = DTYPE_U8, .scales = s,
                       .scale_row_bytes = (size_t)n_s};
    float *x = malloc((size_t)n * 4);
    weight_decode(&m, 0, x);
    for (int64_t i = 0; i < n; i++) {
        uint8_t v[4];
        if (t == DTYPE_F32) memcpy(v, &x[i], 4);
        else memcpy(v, &(uint16_t){t == DTYPE_BF16 ? bf16_from_float(x[i]) : f16_from_float(x[i])}, 2);
        if (!same(t, v, y + i * dtype_bytes(t), 1)) fail_msg("%s %s %s at %d: %a, MLX %a", json_string_value(json_object_get(o, "name")), mode, dtype_name(t), (int)i, x[i], from(t, y, i));
    }
    free(x);
}

static void every_stored_value_of_the_mlx_goldens_comes_out(void **state) {
    (void)state;
    const char *index_path = help_shared("goldens/mlx_quantize/index.json"), *data_path = help_shared("goldens/mlx_quantize/data.bin");
    if (!index_path || !data_path) skip();
    json_t *index, *o;
    struct file_map data;
    struct weft_error e = {0};
    assert_int_equal(json_read_file(&index, index_path, 1 << 24, &e), 0);
    assert_int_equal(file_open_map(&data, data_path, &e), 0);
    size_t i;
    int n_affine = 0, n_mx = 0;
    json_array_foreach(index, i, o) {
        const char *mode = json_string_value(json_object_get(o, "mode")), *dt = json_string_value(json_object_get(o, "dt"));
        const char *name = json_string_value(json_object_get(o, "name"));
        enum dtype t = strcmp(dt, "f32") == 0 ? DTYPE_F32 : strcmp(dt, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F16;
        if (strcmp(mode, "affine") == 0) check_affine_case(o, data.data, t), n_affine++;
        else if (strcmp(name, "nan") != 0 && strcmp(name, "inf") != 0 && !json_object_get(o, "g")) check_mx_case(o, data.data, t, mode), n_mx++;
    }
    assert_true(n_affine > 700 && n_mx > 50);
    file_close_map(&data);
    json_decref(index);
}

/* Buffers that Apple GPUs wrote: 8 bits, groups of 32, bf16. */
static void compare_gpu_part(const uint8_t *raw, const json_t *x, const json_t *packed, const json_t *scales, const json_t *biases) {
    const json_t *parts[4] = {x, packed, scales, biases};
    const uint8_t *p[4];
    int64_t n = 1;
    for (int i = 0; i < 4; i++) {
        assert_true(json_is_object(parts[i]));
        p[i] = raw + 4 * json_integer_value(json_object_get(parts[i], "offset"));
    }
    const json_t *shape = json_object_get(x, "shape");
    for (size_t i = 0; i < json_array_size(shape); i++) n *= json_integer_value(json_array_get(shape, i));
    float *v = malloc((size_t)n * 4);
    uint8_t *row = malloc((size_t)n), *s = malloc((size_t)n / 32 * 4), *b = malloc((size_t)n / 32 * 4);
    memcpy(v, p[0], (size_t)n * 4);
    affine_encode_row(v, n, 8, 32, AFFINE_METAL, DTYPE_BF16, row, s, b);
    assert_memory_equal(row, p[1], (size_t)n);
    for (int64_t i = 0; i < n / 32; i++) {
        assert_true(float_from_bf16(load_u16(s + 2 * i)) == load_f32(p[2] + 4 * i));
        assert_true(float_from_bf16(load_u16(b + 2 * i)) == load_f32(p[3] + 4 * i));
    }
    free(v), free(row), free(s), free(b);
}

static void the_metal_path_equals_what_apple_gpus_recorded(void **state) {
    (void)state;
    static const char *const names[] = {"goldens", "goldens_apple-m1-max"};
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof path, "goldens/apple_gpu/%s.json", names[i]);
        const char *json_path = help_shared(path);
        snprintf(path, sizeof path, "goldens/apple_gpu/%s.bin", names[i]);
        const char *bin_path = help_shared(path);
        if (!json_path || !bin_path) skip();
        json_t *j;
        struct file_map raw;
        struct weft_error e = {0};
        assert_int_equal(json_read_file(&j, json_path, 1 << 24, &e), 0);
        assert_int_equal(file_open_map(&raw, bin_path, &e), 0);
        const json_t *m = json_object_get(j, "mechanics"), *first = json_array_get(json_object_get(m, "steps"), 0);
        const json_t *after = json_object_get(json_object_get(m, "checkpoints"), "0");
        compare_gpu_part(raw.data, json_object_get(first, "k"), json_object_get(after, "k_packed"), json_object_get(after, "k_scales"),
                         json_object_get(after, "k_biases"));
        compare_gpu_part(raw.data, json_object_get(first, "v"), json_object_get(after, "v_packed"), json_object_get(after, "v_scales"),
                         json_object_get(after, "v_biases"));
        file_close_map(&raw);
        json_decref(j);
    }
}

/* ---- representations */

static void fp8_rows_take_the_scale_of_their_block_also_in_a_slice(void **state) {
    (void)state;
    enum { ROWS = 300, COLS = 200 };
    static uint8_t data[ROWS * COLS];
    float scales[3][2] = {{1, 2}, {4, 8}, {16, 32}}, out[COLS];
    for (int i = 0; i < ROWS * COLS; i++) data[i] = (uint8_t)(i % 126);
    struct weight w = {.repr = representation_find("fp8"), .name = "w", .file = "f", .n_rows = ROWS, .n_cols = COLS, .dtype = DTYPE_F8_E4M3,
                       .bits = 8, .data = data, .row_bytes = COLS, .scale_dtype = DTYPE_F32, .scales = (uint8_t *)scales, .scale_row_bytes = 8};
    struct weight part = weight_rows(&w, 100, 200);
    struct weft_error e = {0};
    assert_int_equal(weight_check(&w, 0, ROWS, &e), 0);
    for (int r = 0; r < ROWS; r++) {
        if (r >= 100) weight_decode(&part, r - 100, out);
        else weight_decode(&w, r, out);
        for (int i = 0; i < COLS; i++) assert_true(out[i] == float_from_e4m3(data[r * COLS + i]) * scales[r / 128][i / 128]);
    }
    data[130 * COLS + 5] = 0xff;
    assert_int_equal(weight_check(&w, 0, 130, &e), 0);
    assert_int_equal(weight_check(&w, 0, 131, &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "NaN in row 130"));
    data[130 * COLS + 5] = 0, scales[2][1] = INFINITY;
    assert_int_equal(weight_check(&w, 0, 256, &e), 0);
    assert_int_equal(weight_check(&w, 256, 1, &e), WEFT_ERROR_INPUT);
    assert_true(weight_bytes(&w) == ROWS * COLS + 24);
}

static void values_that_are_not_finite_are_found_in_every_representation(void **state) {
    (void)state;
    uint8_t bytes[257] = {0};
    struct weft_error e = {0};
    static const struct { const char *name; enum dtype t; uint32_t bad; } dense[] = {
        {"bf16", DTYPE_BF16, 0x7f80}, {"f16", DTYPE_F16, 0xfc01}, {"f32", DTYPE_F32, 0x7f800001}};
    for (int i = 0; i < 3; i++) {
        int size = dtype_bytes(dense[i].t);
        struct weight w = {.repr = representation_find(dense[i].name), .name = "w", .file = "f", .n_rows = 2, .n_cols = 32,
                           .dtype = dense[i].t, .data = bytes + 1, .row_bytes = (size_t)size * 32};
        assert_int_equal(weight_check(&w, 0, 2, &e), 0);
        memcpy(bytes + 1 + size * 37, &dense[i].bad, (size_t)size);
        assert_int_equal(weight_check(&w, 0, 1, &e), 0);
        assert_int_equal(weight_check(&w, 0, 2, &e), WEFT_ERROR_INPUT);
        assert_non_null(strstr(e.message, "row 1, column 5"));
        memset(bytes, 0, sizeof bytes);
    }
    uint8_t scales[9] = {0}, biases[9] = {0};
    struct weight w = {.repr = representation_find("affine"), .name = "w", .file = "f", .n_rows = 2, .n_cols = 64, .bits = 4, .group = 32,
                       .dtype = DTYPE_U32, .data = bytes, .row_bytes = 32, .scale_dtype = DTYPE_BF16, .scales = scales + 1,
                       .biases = biases + 1, .scale_row_bytes = 4};
    assert_int_equal(weight_check(&w, 0, 2, &e), 0);
    memcpy(biases + 7, &(uint16_t){0xff80}, 2);
    assert_int_equal(weight_check(&w, 0, 1, &e), 0);
    assert_int_equal(weight_check(&w, 0, 2, &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "biases of tensor \"w\""));
    w.repr = representation_find("mxfp4"), w.biases = NULL, w.scale_row_bytes = 2, w.scale_dtype = DTYPE_U8;
    assert_int_equal(weight_check(&w, 0, 2, &e), 0);
    scales[3] = 255;
    assert_int_equal(weight_check(&w, 0, 2, &e), WEFT_ERROR_INPUT);
}

static void a_slice_of_rows_decodes_as_the_whole(void **state) {
    (void)state;
    uint8_t data[4 * 16], scales[4 * 2], biases[4 * 2];
    float a[32], b[32];
    for (int r = 0; r < 4; r++) {
        for (int i = 0; i < 32; i++) a[i] = (float)(i * (r + 1) % 11) - 3;
        affine_encode_row(a, 32, 4, 32, AFFINE_METAL, DTYPE_F16, data + 16 * r, scales + 2 * r, biases + 2 * r);
    }
    struct weight w = {.repr = representation_find("affine"), .name = "w", .file = "f", .n_rows = 4, .n_cols = 32, .bits = 4, .group = 32,
                       .dtype = DTYPE_U32, .data = data, .row_bytes = 16, .scale_dtype = DTYPE_F16, .scales = scales, .biases = biases,
                       .scale_row_bytes = 2};
    struct weight part = weight_rows(&w, 1, 3);
    for (int r = 1; r < 4; r++) {
        weight_decode(&w, r, a);
        weight_decode(&part, r - 1, b);
        assert_memory_equal(a, b, sizeof a);
        for (int i = 0; i < 32; i++) assert_true(fabsf(a[i] - ((float)(i * (r + 1) % 11) - 3)) < 0.7f);
    }
    assert_true(weight_bits(&w) == 5.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_conversions_are_exact_and_round_to_nearest_even),
        cmocka_unit_test(eight_bit_floats_are_exact_and_saturate),
        cmocka_unit_test(the_packing_is_one_stream_of_bits_lowest_first),
        cmocka_unit_test(the_worked_example_of_the_format_comes_out),
        cmocka_unit_test(groups_at_the_edges_are_encoded_as_mlx_does),
        cmocka_unit_test(every_stored_value_of_the_mlx_goldens_comes_out),
        cmocka_unit_test(the_metal_path_equals_what_apple_gpus_recorded),
        cmocka_unit_test(fp8_rows_take_the_scale_of_their_block_also_in_a_slice),
        cmocka_unit_test(values_that_are_not_finite_are_found_in_every_representation),
        cmocka_unit_test(a_slice_of_rows_decodes_as_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

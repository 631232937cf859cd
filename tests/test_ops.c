/* Ops on rows, experts and adapters, on every ISA, against fp64 and the goldens. */
#include <math.h>

#include "help_ops.h"
#include "quant/convert.h"

enum { ALL_FORMS = FORM_F32 | FORM_BF16 | FORM_Q8 };

static struct rows rows_new(int n, int width, int forms) {
    int pad = rows_pad(width);
    struct rows r = {.width = width,
                     .padded = pad,
                     .forms = forms,
                     .f32 = ops_new((size_t)(n * width)),
                     .bf16 = calloc((size_t)(n * pad), 2),
                     .q8 = calloc((size_t)(n * pad), 1),
                     .q8_scale = ops_new((size_t)(n * pad / 32)),
                     .q8_sum = ops_new((size_t)(n * pad / 32))};
    memset(r.bf16, 0x55, (size_t)(n * pad * 2)), memset(r.q8, 0x55, (size_t)(n * pad));
    memset(r.q8_scale, 0x55, (size_t)(n * pad / 32) * 4), memset(r.q8_sum, 0x55, (size_t)(n * pad / 32) * 4);
    return r;
}
static void rows_free(struct rows *r) { free(r->f32), free(r->bf16), free(r->q8), free(r->q8_scale), free(r->q8_sum); }

/* The bf16 and q8 forms are what rows.h says they are of the floats. */
static void assert_forms(const struct rows *r, int n) {
    for (int i = 0; i < n; i++)
        for (int b = 0; b < r->padded / 32; b++) {
            const float *x = r->f32 + i * r->width;
            int64_t block = (int64_t)i * (r->padded / 32) + b, sum = 0;
            float most = 0.0f;
            for (int j = b * 32; j < b * 32 + 32 && j < r->width; j++) most = fmaxf(most, fabsf(x[j]));
            float scale = q8_scale_of(most), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
            assert_true(r->q8_scale[block] == scale && scale <= most / 127.0f && scale >= most / 127.0f * (1.0f - 0x1p-20f));
            assert_true((double)scale * 0x1.8p23 == (double)(scale * 0x1.8p23f));
            for (int j = b * 32; j < b * 32 + 32; j++) {
                float v = j < r->width ? x[j] : 0.0f;
                int code = (int)rintf(v * inverse);
                assert_int_equal(r->q8[(int64_t)i * r->padded + j], code);
                assert_int_equal(r->bf16[(int64_t)i * r->padded + j], j < r->width ? bf16_from_float(v) : 0);
                sum += code;
            }
            assert_true(r->q8_sum[block] == scale * (float)sum);
        }
}

static struct step_limits limits(int width) {
    return (struct step_limits){.max_rows = 64, .max_groups = 2, .max_width = width, .n_experts = 256, .top_k = 8};
}

static void norms_are_right_and_every_form_is_that_of_the_floats(void **state) {
    (void)state;
    enum { N = 5 };
    static const int widths[] = {1, 31, 32, 33, 64, 100, 1024, 2560};
    for (OPS_EACH_ISA(isa))
        for (int w = 0; w < 8; w++) {
            int width = widths[w];
            struct step_limits l = limits(width);
            struct ops_device d;
            if (!ops_open(&d, isa, 2, &l)) continue;
            uint64_t seed = 3;
            float *x = ops_new((size_t)(N * width)), *gain = ops_new((size_t)width), *gate = ops_new((size_t)(N * width));
            double *want = malloc((size_t)width * sizeof *want);
            ops_fill(&seed, x, (size_t)(N * width), 1.0f), ops_fill(&seed, gain, (size_t)width, 1.0f);
            ops_fill(&seed, gate, (size_t)(N * width), 4.0f);
            for (int j = 0; j < width; j++) x[j] *= 1e-5f, x[width + j] *= 1e3f, x[2 * width + j] = 0.0f;
            for (int gated = 0; gated < 2; gated++) {
                struct rows out = rows_new(N, width, ALL_FORMS), narrow = rows_new(N, width, FORM_Q8);
                struct op op[2] = {{.kind = OP_NORM, .wait = 1, .norm = {x, width, gain, 1e-6f, N, 0, out}},
                                   {.kind = OP_NORM, .wait = 1, .norm = {x, width, gain, 1e-6f, N, 0, narrow}}};
                if (gated)
                    for (int i = 0; i < 2; i++)
                        op[i] = (struct op){.kind = OP_GATED_NORM, .wait = 1,
                                            .gated_norm = {x, gate, gain, 1e-6f, N, 1, width, i ? narrow : out}};
                ops_run(&d, op, 2);
                for (int i = 0; i < N; i++) {
                    double squares = 0.0;
                    for (int j = 0; j < width; j++) squares += pow((double)x[i * width + j], 2);
                    for (int j = 0; j < width; j++) {
                        double g = (double)gate[i * width + j];
                        want[j] = (double)x[i * width + j] * (double)gain[j] / sqrt(squares / width + 1e-6);
                        if (gated) want[j] *= g / (1.0 + exp(-g));
                    }
                    assert_true(ops_error(out.f32 + i * width, want, (size_t)width) < 5e-7);
                }
                assert_forms(&out, N);
                assert_memory_equal(out.q8, narrow.q8, (size_t)(N * out.padded));
                assert_memory_equal(out.q8_sum, narrow.q8_sum, (size_t)(N * out.padded / 32) * 4);
                rows_free(&out), rows_free(&narrow);
            }
            free(x), free(gain), free(gate), free(want), ops_close(&d);
        }
}

static void silu_times_up_is_right_and_in_every_form(void **state) {
    (void)state;
    enum { N = 3, STRIDE = 2200 };
    static const int widths[] = {7, 96, 1000, 2100};
    for (OPS_EACH_ISA(isa))
        for (int w = 0; w < 4; w++) {
            struct step_limits l = limits(widths[w]);
            struct ops_device d;
            if (!ops_open(&d, isa, 2, &l)) continue;
            uint64_t seed = 5;
            float *gate = ops_new(N * STRIDE), *up = ops_new(N * STRIDE);
            ops_fill(&seed, gate, N * STRIDE, 8.0f), ops_fill(&seed, up, N * STRIDE, 1.0f);
            gate[0] = -200.0f, gate[1] = 200.0f, gate[2] = -0.0f;
            struct rows out = rows_new(N, widths[w], ALL_FORMS);
            struct op op = {.kind = OP_SILU_MUL, .wait = 1, .silu_mul = {gate, up, STRIDE, N, out}};
            ops_run(&d, &op, 1);
            for (int i = 0; i < N; i++)
                for (int j = 0; j < widths[w]; j++) {
                    double g = (double)gate[i * STRIDE + j], want = g / (1.0 + exp(-g)) * (double)up[i * STRIDE + j];
                    assert_true(fabs((double)out.f32[i * widths[w] + j] - want) <= 5e-7 * fabs(want) + 1e-30);
                }
            assert_forms(&out, N);
            struct rows again = out;
            again.forms = FORM_F32 | FORM_BF16, memset(out.bf16, 0, (size_t)(N * out.padded * 2));
            struct op convert = {.kind = OP_CONVERT, .wait = 1, .convert = {again, 1, N - 1}}; /* not the first row */
            ops_run(&d, &convert, 1);
            assert_int_equal(out.bf16[1], 0);
            for (int j = 0; j < widths[w]; j++)
                assert_int_equal(out.bf16[out.padded + j], bf16_from_float(out.f32[widths[w] + j]));
            rows_free(&out), free(gate), free(up), ops_close(&d);
        }
}

/* A row with a NaN must not become a plausible one: its q8 scale is NaN. */
static void a_nan_survives_every_form(void **state) {
    (void)state;
    for (OPS_EACH_ISA(isa))
        for (int at = 0; at < 32; at++) {
            struct step_limits l = limits(32);
            struct ops_device d;
            if (!ops_open(&d, isa, 1, &l)) continue;
            struct rows x = rows_new(1, 32, ALL_FORMS);
            for (int i = 0; i < 32; i++) x.f32[i] = 1.0f;
            x.f32[at] = NAN;
            struct op op = {.kind = OP_CONVERT, .wait = 1, .convert = {x, 0, 1}};
            ops_run(&d, &op, 1);
            assert_true(isnan(x.q8_scale[0]) && isnan(x.q8_sum[0]) && isnan(float_from_bf16(x.bf16[at])));
            rows_free(&x), ops_close(&d);
        }
}

/* Kernels multiply scales by 1.5 * 2^23 or not: none may give a number where another has none. */
static void a_q8_scale_too_large_for_some_kernel_is_infinite(void **state) {
    (void)state;
    assert_true(isinf(q8_scale_of(0x1p112f)) && isfinite(q8_scale_of(0x1p110f) * 0x1.8p23f));
    for (OPS_EACH_ISA(isa)) {
        struct step_limits l = limits(32);
        struct ops_device d;
        if (!ops_open(&d, isa, 1, &l)) continue;
        struct rows x = rows_new(1, 32, ALL_FORMS);
        x.f32[7] = -0x1p112f;
        struct op op = {.kind = OP_CONVERT, .wait = 1, .convert = {x, 0, 1}};
        ops_run(&d, &op, 1);
        assert_true(isinf(x.q8_scale[0]) && isnan(x.q8_sum[0]) && x.q8[7] == 0);
        rows_free(&x), ops_close(&d);
    }
}

/* Blocks are quantized side by side, and one without a finite inverse must not show in its neighbours. */
static void a_q8_block_is_the_same_in_any_company(void **state) {
    (void)state;
    enum { BLOCKS = 71, WIDTH = 32 * BLOCKS };
    static const float odd[] = {0.0f, NAN, INFINITY, 0x1p-140f, 0x1p112f, -0x1p127f};
    for (OPS_EACH_ISA(isa))
        for (int round = 0; round < 40; round++) {
            struct step_limits l = limits(WIDTH);
            struct ops_device d;
            if (!ops_open(&d, isa, 1, &l)) continue;
            struct rows x = rows_new(1, WIDTH, ALL_FORMS);
            uint64_t seed = (uint64_t)round + 1;
            ops_fill(&seed, x.f32, WIDTH, 2.0f);
            for (int i = 0; i < round % 4; i++) {
                float *block = x.f32 + 32 * ((round * 7 + i * 13) % BLOCKS), with = odd[(round + i) % 6];
                for (int j = 0; j < 32; j++) block[j] = with == 0.0f || with == 0x1p-140f ? with : block[j];
                block[(round + 5 * i) % 32] = with;
            }
            struct op op = {.kind = OP_CONVERT, .wait = 1, .convert = {x, 0, 1}};
            ops_run(&d, &op, 1);
            for (int b = 0; b < BLOCKS; b++) {
                struct rows alone = rows_new(1, 32, ALL_FORMS);
                memcpy(alone.f32, x.f32 + 32 * b, 32 * sizeof(float));
                struct op one = {.kind = OP_CONVERT, .wait = 1, .convert = {alone, 0, 1}};
                ops_run(&d, &one, 1);
                assert_memory_equal(x.q8 + 32 * b, alone.q8, 32);
                assert_memory_equal(x.q8_scale + b, alone.q8_scale, sizeof(float));
                assert_memory_equal(x.q8_sum + b, alone.q8_sum, sizeof(float));
                rows_free(&alone);
            }
            rows_free(&x), ops_close(&d);
        }
}

static double *doubles(float *x, size_t n) {
    double *out = malloc(n * sizeof *out);
    for (size_t i = 0; i < n; i++) out[i] = (double)x[i];
    free(x);
    return out;
}

static void norms_give_the_golden_values(void **state) {
    (void)state;
    for (int gated = 0; gated < 2; gated++) {
        struct ops_golden g;
        if (!ops_golden_open(&g, gated ? "rms_norm_gated" : "rms_norm")) skip();
        int n = 24, width = gated ? 64 : 128;
        float *x = ops_golden_floats(&g, "x"), *gain = ops_golden_floats(&g, "weight"),
              *gate = gated ? ops_golden_floats(&g, "gate") : NULL;
        double *want = doubles(ops_golden_floats(&g, "out"), (size_t)(n * width));
        for (int i = 0; !gated && i < width; i++) gain[i] += 1.0f;
        for (OPS_EACH_ISA(isa)) {
            struct step_limits l = limits(width);
            struct ops_device d;
            if (!ops_open(&d, isa, 2, &l)) continue;
            struct rows out = rows_new(n, width, FORM_F32);
            struct op op = {.kind = OP_NORM, .wait = 1, .norm = {x, width, gain, 1e-6f, n, 0, out}};
            if (gated) op = (struct op){.kind = OP_GATED_NORM, .wait = 1, .gated_norm = {x, gate, gain, 1e-6f, n, 1, width, out}};
            ops_run(&d, &op, 1);
            for (int i = 0; i < n; i++) assert_true(ops_error(out.f32 + i * width, want + i * width, (size_t)width) < 5e-7);
            rows_free(&out), ops_close(&d);
        }
        free(x), free(gain), free(gate), free(want);
        ops_golden_close(&g);
    }
}

/* Runs the router and checks that slots list the pairs by expert, rows ascending. */
static void route(struct ops_device *d, const float *logits, int n, int n_experts, int top_k, int renormalise, int32_t *expert,
                  float *weight) {
    int32_t *slot = calloc((size_t)(n * top_k), 4), *slot_row = calloc((size_t)(n * top_k), 4),
            *begin = calloc((size_t)n_experts + 1, 4);
    struct op op = {.kind = OP_MOE_ROUTE,
                    .wait = 1,
                    .moe_route = {logits, n, n_experts, top_k, renormalise, expert, weight, slot, slot_row, begin}};
    ops_run(d, &op, 1);
    assert_int_equal(begin[0], 0), assert_int_equal(begin[n_experts], n * top_k);
    for (int e = 0; e < n_experts; e++)
        for (int s = begin[e]; s < begin[e + 1]; s++) {
            if (s > begin[e]) assert_true(slot_row[s] > slot_row[s - 1]);
            int found = 0;
            for (int r = 0; r < top_k; r++) found += expert[slot_row[s] * top_k + r] == e && slot[slot_row[s] * top_k + r] == s;
            assert_int_equal(found, 1);
        }
    free(slot), free(slot_row), free(begin);
}

static void the_router_gives_the_golden_experts_and_weights(void **state) {
    (void)state;
    struct ops_golden g;
    if (!ops_golden_open(&g, "moe_router")) skip();
    enum { N = 40, E = 16, K = 4 };
    float *logits = ops_golden_floats(&g, "logits"), *experts = ops_golden_floats(&g, "experts");
    double *weights = doubles(ops_golden_floats(&g, "weights"), N * K);
    for (OPS_EACH_ISA(isa)) {
        struct step_limits l = limits(128);
        struct ops_device d;
        if (!ops_open(&d, isa, 2, &l)) continue;
        int32_t expert[N * K];
        float weight[N * K];
        route(&d, logits, N, E, K, 1, expert, weight);
        for (int i = 0; i < N * K; i++) assert_int_equal(expert[i], (int)experts[i]);
        assert_true(ops_error(weight, weights, N * K) < 5e-7);
        ops_close(&d);
    }
    free(logits), free(experts), free(weights);
    ops_golden_close(&g);
}

static void ties_go_to_the_lowest_expert_and_weights_keep_their_sum_unless_renormalised(void **state) {
    (void)state;
    for (OPS_EACH_ISA(isa)) {
        struct step_limits l = limits(128);
        struct ops_device d;
        if (!ops_open(&d, isa, 1, &l)) continue;
        float logits[2 * 10] = {0, 1, 1, 0, 1, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, weight[6];
        int32_t expert[6];
        route(&d, logits, 2, 10, 3, 0, expert, weight);
        static const int32_t want[6] = {1, 2, 4, 0, 1, 2};
        assert_memory_equal(expert, want, sizeof want);
        double p = exp(1.0) / (4.0 * exp(1.0) + 6.0);
        for (int i = 0; i < 3; i++) assert_true(fabs((double)weight[i] - p) < 1e-7 && fabsf(weight[3 + i] - 0.1f) < 1e-7f);
        ops_close(&d);
    }
}

static void experts_are_added_in_rank_order_and_then_the_shared_one(void **state) {
    (void)state;
    enum { N = 3, K = 2, W = 1100 };
    for (OPS_EACH_ISA(isa)) {
        struct step_limits l = limits(W);
        struct ops_device d;
        if (!ops_open(&d, isa, 2, &l)) continue;
        uint64_t seed = 9;
        float *y = ops_new(N * K * W), *shared = ops_new(N * W), *out = ops_new(N * W), *base = ops_new(N * W);
        float weight[N * K] = {0.5f, 0.25f, 0.7f, 0.3f, 1.0f, 0.0f}, gate[N] = {0.3f, -2.0f, 50.0f};
        int32_t slot[N * K] = {3, 0, 1, 5, 4, 2};
        ops_fill(&seed, y, N * K * W, 1.0f), ops_fill(&seed, shared, N * W, 1.0f), ops_fill(&seed, base, N * W, 1.0f);
        for (int with = 0; with < 2; with++) {
            memcpy(out, base, N * W * sizeof *out);
            struct op op = {.kind = OP_MOE_COMBINE, .wait = 1,
                            .moe_combine = {y, slot, weight, N, K, W, with ? shared : NULL, with ? gate : NULL, out}};
            ops_run(&d, &op, 1);
            for (int i = 0; i < N; i++)
                for (int j = 0; j < W; j++) {
                    double want = (double)base[i * W + j];
                    for (int r = 0; r < K; r++) want += (double)weight[i * K + r] * (double)y[slot[i * K + r] * W + j];
                    if (with) want += (double)shared[i * W + j] / (1.0 + exp(-(double)gate[i]));
                    assert_true(fabs((double)out[i * W + j] - want) < 1e-6);
                }
        }
        free(y), free(shared), free(out), free(base), ops_close(&d);
    }
}

static void an_adapter_adds_its_product_scaled_and_with_the_ratio_of_dora(void **state) {
    (void)state;
    enum { ROWS = 4, ROW0 = 1, N = 3, IN = 70, OUT = 1050, R = 21 };
    for (OPS_EACH_ISA(isa))
        for (int way = 0; way < 4; way++) {
            struct step_limits l = limits(OUT);
            struct ops_device d;
            if (!ops_open(&d, isa, 2, &l)) continue;
            uint64_t seed = 13;
            float *x = ops_new(ROWS * IN), *a = ops_new(R * IN), *b = ops_new(R * OUT), *ratio = ops_new(OUT),
                  *y = ops_new(ROWS * OUT), *base = ops_new(ROWS * OUT), *sum = ops_new(ROWS * OUT),
                  *before = ops_new(ROWS * OUT), t[N * R];
            ops_fill(&seed, x, ROWS * IN, 1.0f), ops_fill(&seed, a, R * IN, 1.0f), ops_fill(&seed, b, R * OUT, 1.0f);
            ops_fill(&seed, ratio, OUT, 1.0f), ops_fill(&seed, base, ROWS * OUT, 1.0f), ops_fill(&seed, before, ROWS * OUT, 1.0f);
            memcpy(y, base, ROWS * OUT * sizeof *y), memcpy(sum, before, ROWS * OUT * sizeof *y);
            struct op_adapter o = {
                x, IN, ROW0, N, IN, OUT, R, a, b, 0.75f, way & 1 ? ratio : NULL, t, y, OUT, way & 2 ? sum : NULL, OUT};
            struct op ops[2] = {{.kind = OP_ADAPTER_DOWN, .wait = 1, .adapter = o},
                                {.kind = OP_ADAPTER_UP, .wait = 1, .adapter = o}};
            ops_run(&d, ops, 2);
            assert_memory_equal(y, base, ROW0 * OUT * sizeof *y);
            for (int i = ROW0; i < ROWS; i++)
                for (int j = 0; j < OUT; j++) {
                    double want = 0.0;
                    for (int r = 0; r < R; r++) {
                        double dot = 0.0;
                        for (int k = 0; k < IN; k++) dot += (double)x[i * IN + k] * (double)a[r * IN + k];
                        want += dot * (double)b[r * OUT + j];
                    }
                    want = (way & 1 ? (double)ratio[j] : 1.0) * (double)base[i * OUT + j] + 0.75 * want;
                    assert_true(fabs((double)y[i * OUT + j] - want) < 4e-5 * (1.0 + fabs(want)));
                    want = way & 2 ? (double)before[i * OUT + j] + (double)y[i * OUT + j] : (double)before[i * OUT + j];
                    assert_true(fabs((double)sum[i * OUT + j] - want) < 1e-5);
                }
            free(x), free(a), free(b), free(ratio), free(y), free(base), free(sum), free(before), ops_close(&d);
        }
}

static void copies_follow_their_index(void **state) {
    (void)state;
    struct step_limits l = limits(64);
    struct ops_device d;
    assert_true(ops_open(&d, "portable", 2, &l));
    float from[5 * 7], to[3 * 9] = {0};
    for (int i = 0; i < 35; i++) from[i] = (float)i;
    const int32_t index[3] = {4, 0, 2};
    struct op ops[1] = {{.kind = OP_COPY, .wait = 1, .copy = {from, 7, index, 0, 3, 6, to, 9}}};
    ops_run(&d, ops, 1);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 9; j++) assert_true(to[i * 9 + j] == (j < 6 ? (float)(index[i] * 7 + j) : 0.0f));
    ops[0].copy.index = NULL, ops[0].copy.from0 = 2;
    ops_run(&d, ops, 1);
    for (int i = 0; i < 3; i++) assert_memory_equal(to + i * 9, from + (2 + i) * 7, 6 * sizeof *to);
    ops_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_right_and_every_form_is_that_of_the_floats),
        cmocka_unit_test(silu_times_up_is_right_and_in_every_form),
        cmocka_unit_test(a_nan_survives_every_form),
        cmocka_unit_test(a_q8_scale_too_large_for_some_kernel_is_infinite),
        cmocka_unit_test(a_q8_block_is_the_same_in_any_company),
        cmocka_unit_test(norms_give_the_golden_values),
        cmocka_unit_test(the_router_gives_the_golden_experts_and_weights),
        cmocka_unit_test(ties_go_to_the_lowest_expert_and_weights_keep_their_sum_unless_renormalised),
        cmocka_unit_test(experts_are_added_in_rank_order_and_then_the_shared_one),
        cmocka_unit_test(an_adapter_adds_its_product_scaled_and_with_the_ratio_of_dora),
        cmocka_unit_test(copies_follow_their_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

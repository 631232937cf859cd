/* Attention over pages: prompts, steps, packs and threads give the same bits, and the right ones. */
#include <math.h>

#include "help_ops.h"
#include "quant/kv.h"

/* One layer of one or more sequences: pages in falling order, so that a page number is not its block's. */
struct layer {
    struct attention_shape s;
    struct kv_scheme low, high;
    int kv_start, n_pages;
    uint8_t *memory[2];
    int32_t *pages;
};

static struct kv_store store_of(const struct layer *y, const struct kv_scheme *s, int low) {
    int64_t k = (int64_t)kv_k_bytes(s, y->s.head_dim), head = k + (int64_t)kv_v_bytes(s, y->s.head_dim);
    return (struct kv_store){s->k, s->v, s->k_bits, s->v_bits, s->group, y->memory[low], head * y->s.n_kv_heads, head, k};
}
static struct kv_layer kv_of(const struct layer *y) {
    return (struct kv_layer){store_of(y, &y->low, 1), store_of(y, &y->high, 0), y->kv_start};
}

static struct layer layer_new(struct attention_shape s, const char *scheme, int kv_start, int n_rows) {
    struct layer y = {.s = s, .kv_start = kv_start, .n_pages = (n_rows + 63) / 64};
    struct weft_error e;
    assert_int_equal(kv_scheme_parse(&y.low, strcmp(scheme, "f32") == 0 ? "f32" : "16", 64, &e), 0);
    assert_int_equal(kv_scheme_parse(&y.high, scheme, s.head_dim % 64 ? 32 : 64, &e), 0);
    assert_int_equal(kv_scheme_check(&y.high, s.head_dim, &e), 0);
    for (int low = 0; low < 2; low++) {
        const struct kv_scheme *c = low ? &y.low : &y.high;
        size_t n = (kv_k_bytes(c, s.head_dim) + kv_v_bytes(c, s.head_dim)) * (size_t)(s.n_kv_heads * y.n_pages);
        y.memory[low] = aligned_alloc(64, n);
        assert_non_null(y.memory[low]);
        memset(y.memory[low], 0xff, n); /* NaN in every float format: nothing may come from a row that was not written */
    }
    y.pages = malloc((size_t)y.n_pages * sizeof *y.pages);
    for (int i = 0; i < y.n_pages; i++) y.pages[i] = y.n_pages - 1 - i;
    return y;
}
static void layer_free(struct layer *y) { free(y->memory[0]), free(y->memory[1]), free(y->pages); }

struct inputs { float *q_gate, *k, *v, *q_gain, *k_gain, *inv_freq, *positions; uint8_t axis[256]; int n; };

static struct inputs inputs_new(struct attention_shape s, int n, uint64_t seed) {
    int d = s.head_dim;
    size_t nq = (size_t)n * (size_t)(s.n_heads * 2 * d), nk = (size_t)n * (size_t)(s.n_kv_heads * d);
    struct inputs in = {ops_new(nq), ops_new(nk), ops_new(nk), ops_new((size_t)d), ops_new((size_t)d), ops_new(256),
                        ops_new((size_t)(3 * n)), {0}, n};
    ops_fill(&seed, in.q_gate, nq, 1.0f), ops_fill(&seed, in.k, nk, 1.0f), ops_fill(&seed, in.v, nk, 1.0f);
    for (int i = 0; i < d; i++) in.q_gain[i] = 1.6f + 0.2f * ops_random(&seed), in.k_gain[i] = 1.2f + 0.2f * ops_random(&seed);
    for (int i = 0; i < s.rotary_dim / 2; i++) {
        in.inv_freq[i] = powf(1e7f, -2.0f * (float)i / (float)s.rotary_dim);
        in.axis[i] = (uint8_t)(i % 3);
    }
    for (int r = 0; r < n; r++)
        for (int axis = 0; axis < 3; axis++) in.positions[axis * n + r] = (float)(r + (axis ? r % (3 + axis) : 0));
    return in;
}
static void inputs_free(struct inputs *in) {
    free(in->q_gate), free(in->k), free(in->v), free(in->q_gain), free(in->k_gain), free(in->inv_freq), free(in->positions);
}

/* Rows of the inputs as packed groups; out [n][Hq * D], with bf16 and q8 forms when given. */
struct part { struct layer *y; int first, n, n_before; };

static void run_parts(struct ops_device *d, const struct inputs *in, const struct part *parts, int n_parts, struct rows out) {
    struct attention_shape s = parts[0].y->s;
    int n = 0, wide = s.n_heads * 2 * s.head_dim, narrow = s.n_kv_heads * s.head_dim;
    for (int i = 0; i < n_parts; i++) n += parts[i].n;
    float *q_gate = ops_new((size_t)n * (size_t)wide), *k = ops_new((size_t)n * (size_t)narrow),
          *v = ops_new((size_t)n * (size_t)narrow), *positions = ops_new((size_t)(3 * n)),
          *q = ops_new((size_t)n * (size_t)(wide / 2));
    struct attention_group groups[4];
    for (int i = 0, row = 0; i < n_parts; row += parts[i].n, i++) {
        groups[i] = (struct attention_group){row, parts[i].n, parts[i].n_before, parts[i].y->pages, parts[i].y->pages};
        memcpy(q_gate + (size_t)row * (size_t)wide, in->q_gate + (size_t)parts[i].first * (size_t)wide,
               (size_t)parts[i].n * (size_t)wide * sizeof *q);
        memcpy(k + (size_t)row * (size_t)narrow, in->k + (size_t)parts[i].first * (size_t)narrow,
               (size_t)parts[i].n * (size_t)narrow * sizeof *q);
        memcpy(v + (size_t)row * (size_t)narrow, in->v + (size_t)parts[i].first * (size_t)narrow,
               (size_t)parts[i].n * (size_t)narrow * sizeof *q);
        for (int r = 0; r < parts[i].n; r++)
            for (int axis = 0; axis < 3; axis++)
                positions[axis * n + row + r] = in->positions[axis * in->n + parts[i].first + r];
    }
    struct kv_layer kv = kv_of(parts[0].y);
    struct op_attention a = {
        .shape = s, .q = q, .q_gate = q_gate, .kv = kv, .groups = groups, .n_groups = n_parts, .n_rows = n, .out = out};
    struct op ops[3] = {
        {.kind = OP_ATTENTION_PREPARE, .wait = 1, .attention_prepare = {
            .shape = s, .q_gate = q_gate, .k = k, .v = v, .q_gain = in->q_gain, .k_gain = in->k_gain, .eps = 1e-6f,
            .inv_freq = in->inv_freq, .axis_of_pair = in->axis, .positions = positions, .q = q, .kv = kv, .groups = groups,
            .n_groups = n_parts, .n_rows = n}},
        {.kind = OP_ATTENTION, .wait = 1, .attention = a}, {.kind = OP_ATTENTION_MERGE, .wait = 1, .attention = a}};
    ops_run(d, ops, 3);
    free(q_gate), free(k), free(v), free(positions), free(q);
}

static struct rows plain_rows(struct attention_shape s, float *out) {
    return (struct rows){
        .width = s.n_heads * s.head_dim, .padded = rows_pad(s.n_heads * s.head_dim), .forms = FORM_F32, .f32 = out};
}
static void run(struct ops_device *d, const struct inputs *in, struct layer *y, int first, int n, float *out) {
    run_parts(d, in, &(struct part){y, first, n, first}, 1, plain_rows(y->s, out));
}

static int open_for(struct ops_device *d, const char *isa, int threads, struct attention_shape s) {
    struct step_limits l = {.max_rows = 4096, .max_groups = 4, .max_context_rows = 4096, .n_heads = s.n_heads,
                            .n_kv_heads = s.n_kv_heads, .head_dim = s.head_dim, .max_width = s.n_heads * s.head_dim};
    return ops_open(d, isa, threads, &l);
}

static const char *const schemes[] = {"16", "f32",        "8",          "6",          "5",          "4",         "3",
                                      "2",  "turbo:k8v3", "turbo:k5v8", "turbo:k4v4", "turbo:k2v5", "turbo:k8v2"};
enum { N_SCHEMES = sizeof schemes / sizeof *schemes };

/* ---- fp64 reference: over the rows as they are stored ---- */

static void reference(const struct layer *y, const struct inputs *in, int row, double *out) {
    int d = y->s.head_dim, share = y->s.n_heads / y->s.n_kv_heads, half = y->s.rotary_dim / 2;
    double *weight = malloc((size_t)(row + 1) * sizeof *weight);
    struct kv_layer kv = kv_of(y);
    for (int h = 0; h < y->s.n_heads; h++) {
        const float *x = in->q_gate + ((size_t)row * (size_t)y->s.n_heads + (size_t)h) * 2 * (size_t)d;
        double q[KV_MAX_DIM], squares = 0.0, most = -INFINITY, sum = 0.0;
        for (int i = 0; i < d; i++) squares += (double)x[i] * (double)x[i];
        for (int i = 0; i < d; i++) q[i] = (double)x[i] * (double)in->q_gain[i] / sqrt(squares / d + 1e-6) / sqrt(d);
        for (int i = 0; i < half; i++) {
            double angle = (double)(in->positions[in->axis[i] * in->n + row] * in->inv_freq[i]), a = q[i], b = q[i + half];
            q[i] = a * cos(angle) - b * sin(angle), q[i + half] = b * cos(angle) + a * sin(angle);
        }
        for (int pass = 0; pass < 2; pass++)
            for (int r = 0; r <= row; r++) {
                const struct kv_store *s = r < y->kv_start ? &kv.low : &kv.high;
                const uint8_t *at = s->base + y->pages[r / 64] * s->page_stride + h / share * s->head_stride;
                float stored[KV_MAX_DIM];
                if (pass == 0) {
                    s->k->k.read_row(at, (struct kv_shape){s->k_bits, s->group, d}, r % 64, stored);
                    weight[r] = 0.0;
                    for (int i = 0; i < d; i++) weight[r] += q[i] * (double)stored[i];
                    most = fmax(most, weight[r]);
                } else {
                    s->v->v.read_row(at + s->k_bytes, (struct kv_shape){s->v_bits, s->group, d}, r % 64, stored);
                    double p = exp(weight[r] - most);
                    sum += p;
                    for (int i = 0; i < d; i++) out[h * d + i] = (r ? out[h * d + i] : 0.0) + p * (double)stored[i];
                }
            }
        for (int i = 0; i < d; i++) out[h * d + i] *= 1.0 / (1.0 + exp(-(double)x[d + i])) / sum;
    }
    free(weight);
}

static void attention_is_near_fp64_over_the_stored_rows_in_every_format(void **state) {
    (void)state;
    enum { N = 200 };
    static const struct { struct attention_shape s; int start; } cases[] = {
        {{8, 2, 64, 32}, 0}, {{3, 1, 256, 64}, 0}, {{2, 2, 128, 128}, 70}, {{2, 1, 512, 64}, 128}};
    for (OPS_EACH_ISA(isa))
        for (int c = 0; c < 4; c++)
            for (int i = 0; i < N_SCHEMES; i += c < 2 ? 1 : 2) {
                struct attention_shape s = cases[c].s;
                struct ops_device d;
                if (!open_for(&d, isa, 2, s)) continue;
                struct layer y = layer_new(s, schemes[i], cases[c].start, N);
                struct inputs in = inputs_new(s, N, 5);
                size_t width = (size_t)(s.n_heads * s.head_dim);
                float *out = ops_new(N * width);
                double *want = malloc(width * sizeof *want), bound = 6e-3; /* bf16 dots round q and the weights */
                if (cases[c].start == 0 && strcmp(schemes[i], "16")) bound = strcmp(schemes[i], "f32") ? 1e-3 : 5e-6;
                run(&d, &in, &y, 0, N, out);
                for (int r = 0; r < N; r += 99) {
                    reference(&y, &in, r, want);
                    double error = ops_error(out + (size_t)r * width, want, width);
                    if (!(error < bound)) print_error("%s, %s, case %d, row %d: %.2e\n", isa, schemes[i], c, r, error);
                    assert_true(error < bound);
                }
                free(out), free(want), inputs_free(&in), layer_free(&y), ops_close(&d);
            }
}

/* A prompt of `n` rows whole, against the same cut into pieces (the last repeated), on fresh pages. */
static void check_cut(const char *isa, struct attention_shape s, const char *scheme, int start, int n, const int *cuts,
                      int n_cuts, int threads) {
    struct ops_device d, e;
    if (!open_for(&d, isa, 2, s)) return;
    assert_true(open_for(&e, isa, threads, s));
    struct layer y = layer_new(s, scheme, start, n), z = layer_new(s, scheme, start, n);
    struct inputs in = inputs_new(s, n, 9);
    size_t width = (size_t)(s.n_heads * s.head_dim);
    float *whole = ops_new((size_t)n * width), *cut = ops_new((size_t)n * width);
    run(&d, &in, &y, 0, n, whole);
    for (int at = 0, i = 0; at < n; i++) {
        int step = cuts[i < n_cuts ? i : n_cuts - 1];
        if (step > n - at) step = n - at;
        run(&e, &in, &z, at, step, cut + (size_t)at * width);
        at += step;
    }
    for (int r = 0; r < n; r++)
        if (memcmp(whole + (size_t)r * width, cut + (size_t)r * width, width * sizeof *cut) != 0)
            fail_msg("%s, %s from %d: row %d of %d differs", isa, scheme, start, r, n);
    free(whole), free(cut), inputs_free(&in), layer_free(&y), layer_free(&z), ops_close(&d), ops_close(&e);
}

static void a_prompt_equals_its_chunks_and_its_single_steps_in_every_format(void **state) {
    (void)state;
    static const int starts[] = {0, 100, 128};
    for (OPS_EACH_ISA(isa))
        for (int i = 0; i < N_SCHEMES; i++)
            for (int j = 0; j < 3; j++)
                for (int step = 1; step <= 64; step += 63)
                    check_cut(isa, (struct attention_shape){4, 2, 64, 32}, schemes[i], starts[j], 140, &step, 1, 1 + j);
}

static void chunks_of_any_size_give_the_same_bits_around_the_edges_of_blocks_and_segments(void **state) {
    (void)state;
    static const int cuts[][4] = {{63, 1, 1, 512}, {64, 65, 63, 900}, {1020, 1, 2, 1}, {1023, 1, 1, 5}, {1024, 5, 3, 2}};
    static const char *const some[] = {"16", "f32", "8", "turbo:k8v3"};
    for (OPS_EACH_ISA(isa))
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 5; j++)
                check_cut(isa, (struct attention_shape){3, 1, 64, 64}, some[i], j % 2 ? 0 : 1030, 1100, cuts[j], 4, 1 + j % 3);
}

static void deep_steps_equal_the_prompt_for_heads_of_any_number(void **state) {
    (void)state;
    static const int cuts[] = {1100, 1}, deeper[] = {2100, 1};
    static const int heads[][3] = {{2, 1, 64}, {3, 3, 64}, {16, 2, 64}, {5, 1, 80}, {64, 1, 64}, {2, 1, 256}};
    for (OPS_EACH_ISA(isa))
        for (int i = 0; i < 6; i++)
            check_cut(isa, (struct attention_shape){heads[i][0], heads[i][1], heads[i][2], 32}, "16", i % 2 ? 0 : 70,
                      i ? 1103 : 2103, i ? cuts : deeper, 2, 2);
}

static void packed_groups_equal_each_alone(void **state) {
    (void)state;
    static const char *const some[] = {"16", "4", "turbo:k4v4"};
    struct attention_shape s = {8, 2, 64, 32};
    enum { A = 1300, B = 17, N = 1700 };
    size_t width = 8 * 64;
    for (OPS_EACH_ISA(isa))
        for (int i = 0; i < 3; i++) {
            struct ops_device d;
            if (!open_for(&d, isa, 3, s)) continue;
            struct inputs in = inputs_new(s, N, 15);
            /* Both sequences share the memory of one layer: pages of the second behind those of the first. */
            struct layer y = layer_new(s, some[i], 0, 2 * N), z = layer_new(s, some[i], 0, 2 * N), second = y, second_z = z;
            second.pages = y.pages + (N + 63) / 64, second_z.pages = z.pages + (N + 63) / 64;
            float *out = ops_new(N * width), *alone = ops_new(N * width);
            run(&d, &in, &y, 0, A, out), run(&d, &in, &z, 0, A, out);
            run(&d, &in, &second, 0, B, out), run(&d, &in, &second_z, 0, B, out);
            const struct part parts[2] = {{&y, A, 3, A}, {&second, B, 100, B}};
            run_parts(&d, &in, parts, 2, plain_rows(s, out));
            run_parts(&d, &in, &parts[0], 1, plain_rows(s, alone)); /* again, over the same rows */
            assert_memory_equal(out, alone, 3 * width * sizeof *out);
            run(&d, &in, &z, A, 3, alone), run(&d, &in, &second_z, B, 100, alone + 3 * width);
            assert_memory_equal(out, alone, 103 * width * sizeof *out);
            free(out), free(alone), inputs_free(&in), layer_free(&y), layer_free(&z), ops_close(&d);
        }
}

static void every_form_of_the_result_is_that_of_its_floats(void **state) {
    (void)state;
    static const struct attention_shape shapes[] = {{4, 2, 64, 32}, {5, 1, 80, 32}, {3, 3, 16, 16}};
    for (OPS_EACH_ISA(isa))
        for (int c = 0; c < 3; c++)
            for (int before = 0; before < 1100; before += 1090) {
                struct attention_shape s = shapes[c];
                struct ops_device d;
                if (!open_for(&d, isa, 2, s)) continue;
                int n = before ? 2 : 40, width = s.n_heads * s.head_dim, pad = rows_pad(width);
                struct layer y = layer_new(s, "16", 0, before + n);
                struct inputs in = inputs_new(s, before + n, 21);
                struct rows out[2];
                float *waste = ops_new((size_t)(before * width));
                if (before) run(&d, &in, &y, 0, before, waste);
                for (int i = 0; i < 2; i++)
                    out[i] = (struct rows){.width = width, .padded = pad, .forms = i ? FORM_BF16 | FORM_Q8 : FORM_F32,
                                           .f32 = ops_new((size_t)(n * width)), .bf16 = calloc((size_t)(n * pad), 2),
                                           .q8 = calloc((size_t)(n * pad), 1), .q8_scale = ops_new((size_t)(n * pad / 32)),
                                           .q8_sum = ops_new((size_t)(n * pad / 32))};
                memset(out[1].bf16, 0x55, (size_t)(n * pad * 2)), memset(out[1].q8, 0x55, (size_t)(n * pad));
                for (int i = 0; i < 2; i++) run_parts(&d, &in, &(struct part){&y, before, n, before}, 1, out[i]);
                out[0].forms = FORM_F32 | FORM_BF16 | FORM_Q8;
                struct op op = {.kind = OP_CONVERT, .wait = 1, .convert = {out[0], 0, n}};
                ops_run(&d, &op, 1);
                assert_memory_equal(out[0].bf16, out[1].bf16, (size_t)(n * pad * 2));
                assert_memory_equal(out[0].q8, out[1].q8, (size_t)(n * pad));
                assert_memory_equal(out[0].q8_scale, out[1].q8_scale, (size_t)(n * pad / 32) * sizeof(float));
                assert_memory_equal(out[0].q8_sum, out[1].q8_sum, (size_t)(n * pad / 32) * sizeof(float));
                for (int i = 0; i < 2; i++)
                    free(out[i].f32), free(out[i].bf16), free(out[i].q8), free(out[i].q8_scale), free(out[i].q8_sum);
                free(waste), inputs_free(&in), layer_free(&y), ops_close(&d);
            }
}

static void a_nan_stays_in_its_row_and_in_those_that_see_it(void **state) {
    (void)state;
    enum { N = 130, AT = 70 };
    struct attention_shape s = {4, 2, 64, 32};
    for (OPS_EACH_ISA(isa))
        for (int i = 0; i < N_SCHEMES; i++)
            for (int where = 0; where < 3; where++) { /* in the query, key or value of row AT */
                struct ops_device d;
                if (!open_for(&d, isa, 1, s)) continue;
                struct layer y = layer_new(s, schemes[i], 0, N), z = layer_new(s, schemes[i], 0, N);
                struct inputs in = inputs_new(s, N, 25);
                size_t width = 4 * 64;
                float *clean = ops_new(N * width), *out = ops_new(N * width);
                run(&d, &in, &y, 0, N, clean);
                if (where == 0) in.q_gate[(AT * 4 + 2) * 2 * 64 + 5] = NAN;
                else (where == 1 ? in.k : in.v)[(AT * 2 + 1) * 64 + 5] = NAN;
                run(&d, &in, &z, 0, AT, out), run(&d, &in, &z, AT, N - AT, out + AT * width);
                assert_memory_equal(out, clean, AT * width * sizeof *out);
                assert_memory_equal(out + AT * width, clean + AT * width, 2 * 64 * sizeof *out); /* the other kv head's */
                for (int r = AT; r < (where == 0 ? AT + 1 : N); r++) assert_true(isnan(out[(size_t)r * width + 2 * 64 + 5]));
                if (where == 0)
                    assert_memory_equal(out + (AT + 1) * width, clean + (AT + 1) * width, (N - AT - 1) * width * sizeof *out);
                free(clean), free(out), inputs_free(&in), layer_free(&y), layer_free(&z), ops_close(&d);
            }
}

/* Heads that RMS-norm to themselves: gain chosen so that the rotation alone remains. */
static void rotation_golden(const char *name, int three_axes) {
    struct ops_golden g;
    if (!ops_golden_open(&g, name)) skip();
    enum { D = 256, HALF = 32 };
    const struct tensor *t = ops_golden_tensor(&g, "q");
    int n = (int)t->shape[t->n_dims - 2], heads = (int)t->shape[t->n_dims - 3];
    float *q = ops_golden_floats(&g, "q"), *want = ops_golden_floats(&g, "q_out"),
          *positions = ops_golden_floats(&g, "positions"), *freq = ops_golden_floats(&g, "inv_freq");
    struct attention_shape s = {heads, 1, D, 2 * HALF};
    struct inputs in = inputs_new(s, n, 3);
    memcpy(in.inv_freq, freq, HALF * sizeof *freq);
    for (int i = 0; i < HALF; i++)
        in.axis[i] = (uint8_t)(!three_axes ? 0 : i % 3 == 1 && i < 33 ? 1 : i % 3 == 2 && i < 30 ? 2 : 0);
    memcpy(in.positions, positions, (size_t)((three_axes ? 3 : 1) * n) * sizeof *positions);
    for (int i = 0; i < D; i++) in.q_gain[i] = 1.0f;
    for (int h = 0; h < heads; h++)
        for (int r = 0; r < n; r++) memcpy(in.q_gate + (r * heads + h) * 2 * D, q + (h * n + r) * D, D * sizeof *q);
    for (OPS_EACH_ISA(isa)) {
        struct ops_device d;
        if (!open_for(&d, isa, 1, s)) continue;
        struct layer y = layer_new(s, "16", 0, n);
        float *out = ops_new((size_t)(n * heads * D));
        struct attention_group group = {0, n, 0, y.pages, y.pages};
        struct op op = {.kind = OP_ATTENTION_PREPARE, .wait = 1, .attention_prepare = {
            .shape = s, .q_gate = in.q_gate, .k = in.k, .v = in.v, .q_gain = in.q_gain, .k_gain = in.k_gain, .eps = 0.0f,
            .inv_freq = in.inv_freq, .axis_of_pair = in.axis, .positions = in.positions, .q = out, .kv = kv_of(&y),
            .groups = &group, .n_groups = 1, .n_rows = n}};
        ops_run(&d, &op, 1);
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < n; r++) {
                const float *x = q + (h * n + r) * D, *w = want + (h * n + r) * D;
                double squares = 0.0, expected[D];
                for (int i = 0; i < D; i++) squares += (double)x[i] * (double)x[i];
                for (int i = 0; i < D; i++) expected[i] = (double)w[i] / sqrt(squares / D) / sqrt(D);
                assert_true(ops_error(out + (r * heads + h) * D, expected, D) < 1e-6);
            }
        free(out), layer_free(&y), ops_close(&d);
    }
    free(q), free(want), free(positions), free(freq), inputs_free(&in);
    ops_golden_close(&g);
}
static void one_axis_rotates_as_the_golden_values(void **state) { (void)state, rotation_golden("rotary", 0); }
static void three_axes_rotate_as_the_golden_values(void **state) { (void)state, rotation_golden("mrope", 1); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_near_fp64_over_the_stored_rows_in_every_format),
        cmocka_unit_test(a_prompt_equals_its_chunks_and_its_single_steps_in_every_format),
        cmocka_unit_test(chunks_of_any_size_give_the_same_bits_around_the_edges_of_blocks_and_segments),
        cmocka_unit_test(deep_steps_equal_the_prompt_for_heads_of_any_number),
        cmocka_unit_test(packed_groups_equal_each_alone),
        cmocka_unit_test(every_form_of_the_result_is_that_of_its_floats),
        cmocka_unit_test(a_nan_stays_in_its_row_and_in_those_that_see_it),
        cmocka_unit_test(one_axis_rotates_as_the_golden_values),
        cmocka_unit_test(three_axes_rotate_as_the_golden_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

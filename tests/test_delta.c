/* The delta rule: one row or thousands, kept, undone, folded, exported: always the same bits. */
#include <math.h>

#include "help_ops.h"

struct shape { struct delta_shape d; int c, keys, values; size_t state; };

static struct shape shape_of(int hk, int hv, int dk, int dv, int taps) {
    struct shape s = {.d = {hk, hv, dk, dv, taps}, .keys = hk * dk, .values = hv * dv, .state = (size_t)hv * (size_t)(dk * dv)};
    s.c = 2 * s.keys + s.values;
    return s;
}
static const int shapes[][5] = {{1, 2, 64, 64, 4}, {2, 4, 128, 128, 4}, {1, 3, 64, 32, 4}, {2, 2, 20, 13, 3}, {1, 1, 7, 70, 4}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static struct shape shape_at(int i) { return shape_of(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], shapes[i][4]); }

struct inputs { float *qkv, *a, *b, *weight, *rate, *bias; };

static struct inputs inputs_new(const struct shape *s, int n, uint64_t seed) {
    struct inputs in = {ops_new((size_t)(n * s->c)),
                        ops_new((size_t)(n * s->d.value_heads)),
                        ops_new((size_t)(n * s->d.value_heads)),
                        ops_new((size_t)(s->c * s->d.conv_kernel)),
                        ops_new((size_t)s->d.value_heads),
                        ops_new((size_t)s->d.value_heads)};
    ops_fill(&seed, in.qkv, (size_t)(n * s->c), 1.0f);
    ops_fill(&seed, in.a, (size_t)(n * s->d.value_heads), 2.0f);
    ops_fill(&seed, in.b, (size_t)(n * s->d.value_heads), 2.0f);
    ops_fill(&seed, in.weight, (size_t)(s->c * s->d.conv_kernel), 0.5f);
    ops_fill(&seed, in.bias, (size_t)s->d.value_heads, 1.0f);
    for (int h = 0; h < s->d.value_heads; h++) in.rate[h] = -expf(-4.0f + 5.0f * (float)h / (float)s->d.value_heads);
    return in;
}
static void inputs_free(struct inputs *in) {
    free(in->qkv), free(in->a), free(in->b), free(in->weight), free(in->rate), free(in->bias);
}

/* A sequence: state, convolution inputs, two logs. */
struct seq { float *state, *conv; struct delta_log log[2]; int turn, n_pending; };
enum { LOG_ROWS = 16 };

static struct seq seq_new(const struct shape *s, uint64_t seed) {
    struct seq q = {ops_new(s->state), ops_new((size_t)((s->d.conv_kernel - 1) * s->c)), {{0}, {0}}, 0, 0};
    ops_fill(&seed, q.state, s->state, 0.3f);
    ops_fill(&seed, q.conv, (size_t)((s->d.conv_kernel - 1) * s->c), 1.0f);
    for (int i = 0; i < 2; i++)
        q.log[i] = (struct delta_log){ops_new((size_t)(LOG_ROWS * s->d.value_heads)), ops_new((size_t)(LOG_ROWS * s->keys)),
                                      ops_new((size_t)(LOG_ROWS * s->values)), ops_new((size_t)(LOG_ROWS * s->c))};
    return q;
}
static void seq_free(struct seq *q) {
    free(q->state), free(q->conv);
    for (int i = 0; i < 2; i++) free(q->log[i].decay), free(q->log[i].k), free(q->log[i].u), free(q->log[i].conv_in);
}
static void assert_same_seq(const struct shape *s, const struct seq *a, const struct seq *b) {
    assert_memory_equal(a->state, b->state, s->state * sizeof(float));
    assert_memory_equal(a->conv, b->conv, (size_t)((s->d.conv_kernel - 1) * s->c) * sizeof(float));
}

static struct delta_group group_of(struct seq *q, int row0, int n, int undo) {
    struct delta_group g = {.row0 = row0, .n_rows = n, .state = q->state, .conv = q->conv, .pending = q->log[q->turn],
                            .n_pending = q->n_pending, .log = q->log[!q->turn], .fold = undo ? FOLD_PENDING : FOLD_ALL};
    return g;
}
static void keep(struct seq *q, int undo, int n) {
    q->n_pending = undo ? n : 0;
    if (undo) q->turn = !q->turn;
}

/* Rows [first, first + n) of the inputs, packed; out [n][values]. */
static void run_groups(struct ops_device *d, const struct shape *s, const struct inputs *in, int first, int n,
                       const struct delta_group *groups, int n_groups, float *out) {
    float *mixed = ops_new((size_t)(n * s->c)), *decay = ops_new((size_t)(n * s->d.value_heads)),
          *beta = ops_new((size_t)(n * s->d.value_heads));
    const float *qkv = in->qkv + (size_t)first * (size_t)s->c;
    struct op ops[2] = {{.kind = OP_DELTA_PREPARE,
                         .wait = 1,
                         .delta_prepare = {.shape = s->d,
                                           .qkv = qkv,
                                           .a = in->a + first * s->d.value_heads,
                                           .b = in->b + first * s->d.value_heads,
                                           .conv_weight = in->weight,
                                           .neg_exp_a_log = in->rate,
                                           .dt_bias = in->bias,
                                           .mixed = mixed,
                                           .decay = decay,
                                           .beta = beta,
                                           .groups = groups,
                                           .n_groups = n_groups,
                                           .n_rows = n}},
                        {.kind = OP_DELTA,
                         .wait = 1,
                         .delta = {.shape = s->d,
                                   .qkv = qkv,
                                   .mixed = mixed,
                                   .decay = decay,
                                   .beta = beta,
                                   .out = out,
                                   .groups = groups,
                                   .n_groups = n_groups}}};
    ops_run(d, ops, 2);
    free(mixed), free(decay), free(beta);
}

static void run(struct ops_device *d, const struct shape *s, const struct inputs *in, struct seq *q, int first, int n, int undo,
                float *out) {
    struct delta_group g = group_of(q, 0, n, undo);
    run_groups(d, s, in, first, n, &g, 1, out);
}

static int open_for(struct ops_device *d, const char *isa, int threads, const struct shape *s) {
    struct step_limits l = {.max_rows = 64,
                            .max_groups = 4,
                            .key_heads = s->d.key_heads,
                            .value_heads = s->d.value_heads,
                            .key_dim = s->d.key_dim,
                            .value_dim = s->d.value_dim,
                            .conv_kernel = s->d.conv_kernel,
                            .max_width = 64};
    return ops_open(d, isa, threads, &l);
}

/* ---- fp64 reference ---- */

static double silu(double x) { return x / (1.0 + exp(-x)); }

static void reference_row(const struct shape *s, const struct inputs *in, int row, const double *conv, double *state,
                          double *out) {
    int taps = s->d.conv_kernel, share = s->d.value_heads / s->d.key_heads, dk = s->d.key_dim, dv = s->d.value_dim;
    double *x = malloc(sizeof *x * (size_t)s->c);
    for (int c = 0; c < s->c; c++) {
        double sum = 0.0;
        for (int j = 0; j < taps; j++) {
            int at = row - taps + 1 + j;
            double v = at >= 0 ? (double)in->qkv[at * s->c + c] : conv[(at + taps - 1) * s->c + c];
            sum += (double)in->weight[c * taps + j] * v;
        }
        x[c] = silu(sum);
    }
    for (int h = 0; h < 2 * s->d.key_heads; h++) {
        double squares = 1e-6;
        for (int i = 0; i < dk; i++) squares += x[h * dk + i] * x[h * dk + i];
        for (int i = 0; i < dk; i++) x[h * dk + i] /= sqrt(squares) * (h < s->d.key_heads ? sqrt(dk) : 1.0);
    }
    for (int h = 0; h < s->d.value_heads; h++) {
        int at = row * s->d.value_heads + h;
        double t = (double)in->a[at] + (double)in->bias[h];
        double decay = exp((double)in->rate[h] * (t > 20.0 ? t : log1p(exp(t)))), beta = 1.0 / (1.0 + exp(-(double)in->b[at]));
        const double *q = x + h / share * dk, *k = q + s->keys, *v = x + 2 * s->keys + h * dv;
        double *S = state + (size_t)h * (size_t)(dk * dv);
        for (int i = 0; i < dk * dv; i++) S[i] *= decay;
        for (int j = 0; j < dv; j++) {
            double sum = 0.0, o = 0.0;
            for (int i = 0; i < dk; i++) sum += S[i * dv + j] * k[i];
            for (int i = 0; i < dk; i++) S[i * dv + j] += k[i] * beta * (v[j] - sum);
            for (int i = 0; i < dk; i++) o += S[i * dv + j] * q[i];
            out[h * dv + j] = o;
        }
    }
    free(x);
}

/* ---- tests ---- */

static void a_chunk_equals_its_rows_in_any_cut(void **state) {
    (void)state;
    enum { N = 40 };
    for (OPS_EACH_ISA(isa))
        for (int i = 0; i < N_SHAPES; i++) {
            struct shape s = shape_at(i);
            struct ops_device d;
            if (!open_for(&d, isa, 2, &s)) continue;
            struct inputs in = inputs_new(&s, N, 7);
            struct seq whole = seq_new(&s, 3);
            float *out = ops_new((size_t)(N * s.values)), *cut_out = ops_new((size_t)(N * s.values));
            run(&d, &s, &in, &whole, 0, N, 0, out);
            for (int cut = 0; cut < N; cut++) { /* 0: single rows */
                struct seq q = seq_new(&s, 3);
                if (cut) {
                    run(&d, &s, &in, &q, 0, cut, 0, cut_out);
                    run(&d, &s, &in, &q, cut, N - cut, 0, cut_out + cut * s.values);
                } else {
                    for (int r = 0; r < N; r++) run(&d, &s, &in, &q, r, 1, 0, cut_out + r * s.values);
                }
                assert_memory_equal(out, cut_out, (size_t)(N * s.values) * sizeof *out);
                assert_same_seq(&s, &whole, &q);
                seq_free(&q);
            }
            seq_free(&whole), inputs_free(&in), free(out), free(cut_out), ops_close(&d);
        }
}

static void rows_kept_of_an_undo_step_equal_having_stepped_them(void **state) {
    (void)state;
    enum { UNDO = 6, NEXT = 5 };
    for (OPS_EACH_ISA(isa))
        for (int i = 0; i < N_SHAPES; i++) {
            struct shape s = shape_at(i);
            struct ops_device d;
            if (!open_for(&d, isa, 2, &s)) continue;
            struct inputs in = inputs_new(&s, UNDO + NEXT, 11);
            float *out = ops_new((size_t)((UNDO + NEXT) * s.values)), *want = ops_new((size_t)((UNDO + NEXT) * s.values));
            for (int kept = 0; kept <= UNDO; kept++)
                for (int way = 0; way < 3; way++) { /* next: rows, another undo step, only folding */
                    struct seq q = seq_new(&s, 5), plain = seq_new(&s, 5);
                    run(&d, &s, &in, &plain, 0, UNDO, 1, out); /* rejected wholly: must leave no trace */
                    assert_same_seq(&s, &q, &plain);
                    run(&d, &s, &in, &q, 0, UNDO, 1, out);
                    keep(&q, 1, kept);
                    for (int r = 0; r < kept; r++) run(&d, &s, &in, &plain, r, 1, 0, want + r * s.values);
                    assert_memory_equal(out, want, (size_t)(kept * s.values) * sizeof *out);
                    if (way == 2) {
                        run(&d, &s, &in, &q, 0, 0, 0, out);
                    } else {
                        run(&d, &s, &in, &q, kept, NEXT, way, out);
                        keep(&q, way, NEXT);
                        if (way) run(&d, &s, &in, &q, 0, 0, 0, NULL);
                        run(&d, &s, &in, &plain, kept, NEXT, 0, want);
                        assert_memory_equal(out, want, (size_t)(NEXT * s.values) * sizeof *out);
                    }
                    assert_same_seq(&s, &q, &plain);
                    seq_free(&q), seq_free(&plain);
                }
            inputs_free(&in), free(out), free(want), ops_close(&d);
        }
}

/* Rows alone leave the state as it is, whatever comes behind them. */
static void rows_that_wait_equal_rows_in_the_state(void **state) {
    (void)state;
    enum { WAIT = 6, NEXT = 3 };
    for (OPS_EACH_ISA(isa))
        for (int i = 0; i < N_SHAPES; i++) {
            struct shape s = shape_at(i);
            struct ops_device d;
            if (!open_for(&d, isa, 2, &s)) continue;
            struct inputs in = inputs_new(&s, WAIT + NEXT, 13);
            float *out = ops_new((size_t)(NEXT * s.values)), *want = ops_new((size_t)(NEXT * s.values));
            for (int waiting = 0; waiting <= WAIT; waiting++)
                for (int way = 0; way < 4; way++) { /* next: a row, rows, rows to undo, only folding */
                    struct seq q = seq_new(&s, 9), plain = seq_new(&s, 9), before = seq_new(&s, 9);
                    for (int r = 0; r < waiting; r++) {
                        struct delta_group g = group_of(&q, 0, 1, 0);
                        g.fold = FOLD_NOTHING, g.n_pending = r, g.log = g.pending;
                        g.log.decay += r * s.d.value_heads, g.log.k += r * s.keys, g.log.u += r * s.values, g.log.conv_in += r * s.c;
                        run_groups(&d, &s, &in, r, 1, &g, 1, out);
                        run(&d, &s, &in, &plain, r, 1, 0, want);
                        assert_memory_equal(out, want, (size_t)s.values * sizeof *out);
                    }
                    assert_same_seq(&s, &q, &before);
                    q.n_pending = waiting;
                    const int n = way == 0 ? 1 : way == 3 ? 0 : NEXT, undo = way == 2;
                    run(&d, &s, &in, &q, waiting, n, undo, out);
                    keep(&q, undo, n);
                    if (undo) run(&d, &s, &in, &q, 0, 0, 0, NULL);
                    if (n) run(&d, &s, &in, &plain, waiting, n, 0, want);
                    assert_memory_equal(out, want, (size_t)(n * s.values) * sizeof *out);
                    assert_same_seq(&s, &q, &plain);
                    seq_free(&q), seq_free(&plain), seq_free(&before);
                }
            inputs_free(&in), free(out), free(want), ops_close(&d);
        }
}

static void a_snapshot_equals_the_state_of_a_run_that_ends_there(void **state) {
    (void)state;
    enum { N = 20, KEPT = 2 };
    static const int rows[] = {1, 2, 7, 20};
    for (OPS_EACH_ISA(isa))
        for (int i = 0; i < N_SHAPES; i++) {
            struct shape s = shape_at(i);
            struct ops_device d;
            if (!open_for(&d, isa, 2, &s)) continue;
            struct inputs in = inputs_new(&s, N + KEPT, 13);
            float *out = ops_new((size_t)((N + KEPT) * s.values));
            struct seq q = seq_new(&s, 5), at[4];
            struct delta_snapshot snapshots[4];
            run(&d, &s, &in, &q, 0, KEPT, 1, out);
            keep(&q, 1, KEPT);
            struct delta_group g = group_of(&q, 0, N, 0);
            for (int j = 0; j < 4; j++)
                at[j] = seq_new(&s, 77), snapshots[j] = (struct delta_snapshot){rows[j], at[j].state, at[j].conv};
            g.snapshots = snapshots, g.n_snapshots = 4;
            run_groups(&d, &s, &in, KEPT, N, &g, 1, out);
            for (int j = 0; j < 4; j++) {
                struct seq plain = seq_new(&s, 5);
                run(&d, &s, &in, &plain, 0, KEPT + rows[j], 0, out);
                assert_same_seq(&s, &at[j], &plain);
                seq_free(&plain), seq_free(&at[j]);
            }
            seq_free(&q), inputs_free(&in), free(out), ops_close(&d);
        }
}

static void packed_groups_equal_each_alone_for_any_number_of_threads(void **state) {
    (void)state;
    enum { A = 1, B = 17, C = 33, N = A + B + C };
    for (OPS_EACH_ISA(isa))
        for (int threads = 1; threads <= 3; threads++) {
            struct shape s = shape_at(1);
            struct ops_device d;
            if (!open_for(&d, isa, threads, &s)) continue;
            struct inputs in = inputs_new(&s, N, 17);
            float *out = ops_new((size_t)(N * s.values)), *alone = ops_new((size_t)(N * s.values));
            struct seq packed[3], single[3];
            for (uint64_t j = 0; j < 3; j++) packed[j] = seq_new(&s, j), single[j] = seq_new(&s, j);
            struct delta_group g[3] = {group_of(&packed[0], 0, A, 0), group_of(&packed[1], A, B, 0),
                                       group_of(&packed[2], A + B, C, 0)};
            run_groups(&d, &s, &in, 0, N, g, 3, out);
            run(&d, &s, &in, &single[0], 0, A, 0, alone);
            run(&d, &s, &in, &single[1], A, B, 0, alone + A * s.values);
            run(&d, &s, &in, &single[2], A + B, C, 0, alone + (A + B) * s.values);
            assert_memory_equal(out, alone, (size_t)(N * s.values) * sizeof *out);
            for (int j = 0; j < 3; j++) assert_same_seq(&s, &packed[j], &single[j]), seq_free(&packed[j]), seq_free(&single[j]);
            inputs_free(&in), free(out), free(alone), ops_close(&d);
        }
}

static void single_steps_4096_of_them_stay_within_a_thousandth_of_fp64(void **state) {
    (void)state;
    enum { N = 4096 };
    struct shape s = shape_of(1, 2, 64, 32, 4);
    struct inputs in = inputs_new(&s, N, 19);
    struct seq start = seq_new(&s, 23);
    size_t n_conv = (size_t)(3 * s.c), n_out = (size_t)(N * s.values);
    double *conv = malloc(n_conv * sizeof *conv), *S = malloc(s.state * sizeof *S), *want = malloc(n_out * sizeof *want);
    for (size_t i = 0; i < n_conv; i++) conv[i] = (double)start.conv[i];
    for (size_t i = 0; i < s.state; i++) S[i] = (double)start.state[i];
    for (int r = 0; r < N; r++) reference_row(&s, &in, r, conv, S, want + r * s.values);
    float *out = ops_new(n_out);
    for (OPS_EACH_ISA(isa)) {
        struct ops_device d;
        if (!open_for(&d, isa, 1, &s)) continue;
        struct seq q = seq_new(&s, 23);
        for (int r = 0; r < N; r++) run(&d, &s, &in, &q, r, 1, 0, out + r * s.values);
        double error = ops_error(out, want, n_out), last = ops_error(q.state, S, s.state);
        print_message("%s: outputs %.1e, state %.1e\n", isa, error, last);
        assert_true(error < 1e-5 && last < 1e-3); /* the promise is 1e-3 */
        seq_free(&q), ops_close(&d);
    }
    free(conv), free(S), free(want), free(out), seq_free(&start), inputs_free(&in);
}

static void golden(const char *name, int dim) {
    struct ops_golden g;
    if (!ops_golden_open(&g, name)) skip();
    enum { T = 200, HK = 2, HV = 4 };
    struct shape s = shape_of(HK, HV, dim, dim, 4);
    float *q = ops_golden_floats(&g, "q"), *k = ops_golden_floats(&g, "k"), *v = ops_golden_floats(&g, "v"),
          *decay = ops_golden_floats(&g, "g"), *beta = ops_golden_floats(&g, "beta"), *in = ops_golden_floats(&g, "state_in"),
          *end = ops_golden_floats(&g, "state_out"), *want = ops_golden_floats(&g, "out");
    float *mixed = ops_new((size_t)(T * s.c)), *out = ops_new((size_t)(T * s.values));
    for (int t = 0; t < T; t++) {
        for (int h = 0; h < 2 * HK; h++) {
            const float *x = (h < HK ? q : k) + (t * HK + h % HK) * dim;
            double squares = 1e-6;
            for (int i = 0; i < dim; i++) squares += (double)x[i] * (double)x[i];
            for (int i = 0; i < dim; i++)
                mixed[t * s.c + h * dim + i] = (float)((double)x[i] / sqrt(squares) / (h < HK ? sqrt(dim) : 1.0));
        }
        memcpy(mixed + t * s.c + 2 * s.keys, v + t * s.values, (size_t)s.values * sizeof *v);
    }
    for (int i = 0; i < T * HV; i++) decay[i] = expf(decay[i]);
    double *want64 = malloc((size_t)(T * s.values) * sizeof(double)), *end64 = malloc(s.state * sizeof(double));
    for (int i = 0; i < T * s.values; i++) want64[i] = (double)want[i];
    for (size_t i = 0; i < s.state; i++) end64[i] = (double)end[i];
    for (OPS_EACH_ISA(isa)) {
        struct ops_device d;
        if (!open_for(&d, isa, 2, &s)) continue;
        struct seq sq = seq_new(&s, 1);
        memcpy(sq.state, in, s.state * sizeof *in);
        struct delta_group group = group_of(&sq, 0, T, 0);
        struct op op = {.kind = OP_DELTA,
                        .wait = 1,
                        .delta = {.shape = s.d,
                                  .qkv = mixed,
                                  .mixed = mixed,
                                  .decay = decay,
                                  .beta = beta,
                                  .out = out,
                                  .groups = &group,
                                  .n_groups = 1}};
        ops_run(&d, &op, 1);
        assert_true(ops_error(out, want64, (size_t)(T * s.values)) < 3e-6);
        assert_true(ops_error(sq.state, end64, s.state) < 3e-6);
        seq_free(&sq), ops_close(&d);
    }
    free(q), free(k), free(v), free(decay), free(beta), free(in), free(end), free(want), free(mixed), free(out), free(want64),
        free(end64);
    ops_golden_close(&g);
}
static void the_rule_gives_the_golden_values_of_dim_64(void **state) { (void)state, golden("gated_delta_rule_64", 64); }
static void the_rule_gives_the_golden_values_of_dim_128(void **state) { (void)state, golden("gated_delta_rule_128", 128); }

static void the_convolution_gives_the_golden_values(void **state) {
    (void)state;
    struct ops_golden g;
    if (!ops_golden_open(&g, "causal_conv1d")) skip();
    enum { T = 50, C = 96, V0 = 32 };
    struct shape s = shape_of(1, 1, 16, 64, 4);
    float *x = ops_golden_floats(&g, "x"), *w = ops_golden_floats(&g, "weight"), *want = ops_golden_floats(&g, "out"),
          *end = ops_golden_floats(&g, "state_after_50"), *mid = ops_golden_floats(&g, "state_after_30");
    float a[T] = {0}, zero[1] = {0}, out[T * 64], mixed[T * C], decay[T], beta[T];
    for (OPS_EACH_ISA(isa)) {
        struct ops_device d;
        if (!open_for(&d, isa, 1, &s)) continue;
        struct seq q = seq_new(&s, 1), m = seq_new(&s, 1);
        memset(q.conv, 0, 3 * C * sizeof(float));
        struct delta_snapshot snapshot = {30, m.state, m.conv};
        struct delta_group group = group_of(&q, 0, T, 0);
        group.snapshots = &snapshot, group.n_snapshots = 1;
        struct op ops[2] = {{.kind = OP_DELTA_PREPARE,
                             .wait = 1,
                             .delta_prepare = {.shape = s.d,
                                               .qkv = x,
                                               .a = a,
                                               .b = a,
                                               .conv_weight = w,
                                               .neg_exp_a_log = zero,
                                               .dt_bias = zero,
                                               .mixed = mixed,
                                               .decay = decay,
                                               .beta = beta,
                                               .groups = &group,
                                               .n_groups = 1,
                                               .n_rows = T}},
                            {.kind = OP_DELTA,
                             .wait = 1,
                             .delta = {.shape = s.d,
                                       .qkv = x,
                                       .mixed = mixed,
                                       .decay = decay,
                                       .beta = beta,
                                       .out = out,
                                       .groups = &group,
                                       .n_groups = 1}}};
        ops_run(&d, ops, 2);
        for (int t = 0; t < T; t++)
            for (int c = V0; c < C; c++)
                assert_true(fabsf(mixed[t * C + c] - want[t * C + c]) <= 1e-6f * (1.0f + fabsf(want[t * C + c])));
        assert_memory_equal(q.conv, end, 3 * C * sizeof(float));
        assert_memory_equal(m.conv, mid, 3 * C * sizeof(float));
        seq_free(&q), seq_free(&m), ops_close(&d);
    }
    free(x), free(w), free(want), free(end), free(mid);
    ops_golden_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_equals_its_rows_in_any_cut),
        cmocka_unit_test(rows_kept_of_an_undo_step_equal_having_stepped_them),
        cmocka_unit_test(rows_that_wait_equal_rows_in_the_state),
        cmocka_unit_test(a_snapshot_equals_the_state_of_a_run_that_ends_there),
        cmocka_unit_test(packed_groups_equal_each_alone_for_any_number_of_threads),
        cmocka_unit_test(single_steps_4096_of_them_stay_within_a_thousandth_of_fp64),
        cmocka_unit_test(the_rule_gives_the_golden_values_of_dim_64),
        cmocka_unit_test(the_rule_gives_the_golden_values_of_dim_128),
        cmocka_unit_test(the_convolution_gives_the_golden_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

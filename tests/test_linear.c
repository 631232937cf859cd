#define _GNU_SOURCE
#include "help_test.h"

#include <limits.h>
#include <math.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "cpu/cpu.h"
#include "quant/convert.h"
#include "quant/quant.h"

/* Every kernel of every ISA that runs here, against fp64 and against each other. The weights are made here, their decoding
 * written anew, so that nothing of quant/ is trusted. */

enum { MAX_ROWS = 70, X_ROWS = 90 };

static const char *only; /* argument of the program: the one ISA to test; NULL: all */
static int runs(const char *name) {
    for (int i = 0; cpu_isas[i]; i++)
        if (strcmp(cpu_isas[i]->name, name) == 0) return cpu_isas[i]->runs_here();
    return 0;
}
static int chosen(const struct cpu_isa *isa) {
#ifdef EMULATED /* test_linear_tiles and test_linear_dots, whose kernels run on a header of tests/: they, and others to compare with */
    if (strcmp(isa->name, EMULATED) != 0 && strcmp(isa->name, BESIDE) != 0) return 0;
    const int here = runs(BESIDE);
#else
    const int here = runs(isa->name);
#endif
    return here && (!only || strcmp(isa->name, only) == 0);
}

static uint64_t seed = 1;
static uint32_t random_u32(void) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 33) ^ (uint32_t)(seed >> 11);
}
static float random_float(void) { return (float)(int32_t)random_u32() * 0x1p-31f; }

/* Memory whose last byte is the last of a page with nothing behind it: reading on is a fault. */
struct fenced { uint8_t *map, *data; size_t map_bytes; };
static struct fenced fenced_new(size_t bytes) {
    struct fenced f;
    size_t pages = (bytes + 4095) / 4096 * 4096;
    f.map_bytes = pages + 4096;
    f.map = mmap(NULL, f.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.map != MAP_FAILED);
    mprotect(f.map + pages, 4096, PROT_NONE);
    f.data = f.map + pages - bytes;
    return f;
}
static void fenced_drop(struct fenced *f) { munmap(f->map, f->map_bytes); }

struct matrix {
    struct weight w;
    struct fenced data, scales, biases;
    double *value; /* [n_out][k] exact */
    uint8_t *code; float *scale, *bias; /* of affine ones: [n_out][k], [n_out][groups] */
};
static struct matrix *decoding; /* whose values the "any" representation gives */

static void decode(const struct weight *w, int64_t row, float *out) {
    const struct matrix *m = decoding;
    assert_ptr_equal(w->data, m->w.data);
    for (int64_t k = 0; k < w->n_cols; k++) out[k] = (float)m->value[row * w->n_cols + k];
}
static const struct representation reprs[] = {
    {"f32", REPR_DENSE, DTYPE_F32, 0, NULL, decode}, {"f16", REPR_DENSE, DTYPE_F16, 0, NULL, decode},
    {"bf16", REPR_DENSE, DTYPE_BF16, 0, NULL, decode}, {"affine", REPR_AFFINE, DTYPE_U32, 1, NULL, decode},
    {"fp8", REPR_FP8, DTYPE_F8_E4M3, 1, NULL, decode},
};

static float put_float(uint8_t *p, size_t i, float v, enum dtype t) {
    uint16_t h = t == DTYPE_BF16 ? bf16_from_float(v) : f16_from_float(v);
    if (t == DTYPE_F32) return memcpy(p + 4 * i, &v, 4), v;
    memcpy(p + 2 * i, &h, 2);
    return t == DTYPE_BF16 ? float_from_bf16(h) : float_from_f16(h);
}

static struct matrix matrix_new(const struct representation *repr, int n_out, int k) {
    struct matrix m = {.w = {.repr = repr, .name = "w", .file = "f", .n_rows = n_out, .n_cols = k, .dtype = repr->dtype}};
    m.value = calloc((size_t)n_out * (size_t)k, sizeof *m.value);
    return m;
}

static struct matrix dense_new(const struct representation *repr, int n_out, int k) {
    struct matrix m = matrix_new(repr, n_out, k);
    size_t n = (size_t)n_out * (size_t)k, each = repr->dtype == DTYPE_F32 ? 4 : repr->dtype == DTYPE_F8_E4M3 ? 1 : 2;
    m.data = fenced_new(n * each + (size_t)(k & 1)); /* odd addresses too, as files have them: the fence then is a byte away */
    for (size_t i = 0; i < n; i++)
        m.value[i] = repr->kind == REPR_FP8 ? random_float() : put_float(m.data.data, i, random_float(), repr->dtype);
    m.w.data = m.data.data, m.w.row_bytes = (size_t)k * each, m.w.bits = (int)each * 8;
    return m;
}

static struct matrix affine_new(int bits, int group, enum dtype t, int n_out, int k) {
    struct matrix m = matrix_new(&reprs[3], n_out, k);
    size_t n = (size_t)n_out * (size_t)k, groups = n / (size_t)group, each = t == DTYPE_F32 ? 4 : 2;
    m.data = fenced_new(n * (size_t)bits / 8);
    m.scales = fenced_new(groups * each), m.biases = fenced_new(groups * each);
    m.code = malloc(n), m.scale = malloc(groups * sizeof(float)), m.bias = malloc(groups * sizeof(float));
    for (size_t g = 0; g < groups; g++) {
        double scale = m.scale[g] = put_float(m.scales.data, g, random_float() * 0.01f, t);
        double bias = m.bias[g] = put_float(m.biases.data, g, random_float() * 0.1f, t);
        for (size_t i = g * (size_t)group; i < (g + 1) * (size_t)group; i++) {
            uint32_t code = random_u32() >> 8 & ((1u << bits) - 1);
            if (g % 5 == 0) code = (1u << bits) - 1; /* the largest sums */
            for (int b = 0; b < bits; b++)
                if (code >> b & 1) m.data.data[(i * (size_t)bits + (size_t)b) / 8] |= (uint8_t)(1 << (i * (size_t)bits + (size_t)b) % 8);
            m.code[i] = (uint8_t)code, m.value[i] = code * scale + bias;
        }
    }
    m.w.bits = bits, m.w.group = group, m.w.data = m.data.data, m.w.row_bytes = (size_t)k * (size_t)bits / 8;
    m.w.scale_dtype = t, m.w.scales = m.scales.data, m.w.biases = m.biases.data, m.w.scale_row_bytes = (size_t)(k / group) * each;
    return m;
}

static void matrix_drop(struct matrix *m) {
    fenced_drop(&m->data);
    if (m->scales.map) fenced_drop(&m->scales), fenced_drop(&m->biases);
    free(m->value), free(m->code), free(m->scale), free(m->bias);
}

/* Rows in all forms, made as backend/rows.h says; the f32 ones fenced. */
struct inputs { struct rows rows; struct fenced f32; double *as[8]; /* [FORM_]: what that form means */ };
static struct inputs inputs_new(int k) {
    struct inputs x = {.rows = {.width = k, .padded = rows_pad(k), .forms = FORM_F32 | FORM_BF16 | FORM_Q8}};
    struct rows *r = &x.rows;
    size_t padded = (size_t)r->padded;
    x.f32 = fenced_new((size_t)k * X_ROWS * 4);
    r->f32 = (float *)(void *)x.f32.data;
    r->bf16 = calloc(X_ROWS * padded, 2), r->q8 = calloc(X_ROWS * padded, 1);
    r->q8_scale = calloc(X_ROWS * padded / 32, 4), r->q8_sum = calloc(X_ROWS * padded / 32, 4);
    for (int f = 1; f < 8; f *= 2) x.as[f] = calloc(X_ROWS * (size_t)k, sizeof(double));
    for (int i = 0; i < X_ROWS; i++) {
        for (int j = 0; j < k; j++) {
            float v = random_float() * (random_u32() % 50 == 0 ? 20 : 1);
            r->f32[i * k + j] = v, r->bf16[i * r->padded + j] = bf16_from_float(v);
            x.as[FORM_F32][i * k + j] = v, x.as[FORM_BF16][i * k + j] = float_from_bf16(bf16_from_float(v));
        }
        for (int b = 0; b * 32 < k; b++) {
            float most = 0;
            int sum = 0, n = k - b * 32 < 32 ? k - b * 32 : 32;
            for (int j = 0; j < n; j++) most = fmaxf(most, fabsf(r->f32[i * k + b * 32 + j]));
            float scale = q8_scale_of(most), inverse = scale > 0 ? 1 / scale : 0;
            for (int j = 0; j < n; j++) {
                int q = (int)rintf(r->f32[i * k + b * 32 + j] * inverse);
                r->q8[i * r->padded + b * 32 + j] = (int8_t)q, sum += q;
                x.as[FORM_Q8][i * k + b * 32 + j] = (double)q * scale;
            }
            r->q8_scale[i * r->padded / 32 + b] = scale, r->q8_sum[i * r->padded / 32 + b] = scale * (float)sum;
        }
    }
    return x;
}
static void inputs_drop(struct inputs *x) {
    fenced_drop(&x->f32);
    free(x->rows.bf16), free(x->rows.q8), free(x->rows.q8_scale), free(x->rows.q8_sum);
    for (int f = 1; f < 8; f *= 2) free(x->as[f]);
}

static int serves(const struct linear_kernel *k, const struct weight *w) {
    return (!k->repr || strcmp(k->repr, w->repr->name) == 0) && (!k->bits || k->bits == w->bits);
}

/* The weight in a kernel's layout, packed in two ranges. */
static struct linear linear_new(const struct linear_kernel *k, const struct weight *w) {
    struct linear l = {.source = w, .n_in = (int)w->n_cols, .n_out = (int)w->n_rows};
    if (!k->layout || !k->layout->bytes) return l;
    l.data_bytes = k->layout->bytes(w), l.data = mem_map_pages(l.data_bytes);
    int half = l.n_out / 2 / k->layout->tile * k->layout->tile;
    if (half < l.n_out) k->layout->pack(w, l.data, half, l.n_out);
    if (half > 0) k->layout->pack(w, l.data, 0, half);
    return l;
}

struct run { const struct linear_kernel *k; const struct linear *l; const struct rows *x; const int32_t *x_row; int x0, n_rows, apart; int64_t y_apart; };

/* Runs columns [col0, col1) into y, n_rows x n_out, with a fence behind the scratch memory. */
static void run(const struct run *r, int col0, int col1, int accumulate, float *y) {
    size_t bytes = r->k->scratch_bytes ? r->k->scratch_bytes(r->n_rows, r->l->n_in) : 0;
    struct fenced scratch = fenced_new((bytes + 63) / 64 * 64);
    memset(scratch.data, 0xff, bytes);
    struct linear_call call = {.w = r->l, .x = r->x, .n_rows = r->n_rows, .x_row = r->x_row, .x0 = r->x0, .y = y,
                               .y_stride = r->l->n_out, .apart = r->apart, .y_apart = r->y_apart, .accumulate = accumulate, .scratch = scratch.data};
    r->k->run(&call, col0, col1);
    fenced_drop(&scratch);
}

static void assert_same_bits(const float *a, const float *b, int n, const struct linear_kernel *k, const char *what, int n_rows) {
    for (int i = 0; i < n; i++)
        if (memcmp(a + i, b + i, 4) != 0)
            fail_msg("%s (%s): %s, %d rows: value %d is %.9g, not %.9g", k->name, k->arithmetic, what, n_rows, i, (double)a[i], (double)b[i]);
}

/* The order of "fma codes by q8" (cpu/linear_avx512.c), word by word. */
static float affine_by_q8(const struct matrix *m, const struct rows *x, int row, int column) {
    int n_blocks = m->w.group / 32, groups = (int)m->w.n_cols / m->w.group, per_row = x->padded / 32;
    float acc = 0;
    for (int g = 0; g < groups; g++) {
        const float *scale = x->q8_scale + row * per_row + g * n_blocks, *block_sum = x->q8_sum + row * per_row + g * n_blocks;
        float scales = scale[0], sum = block_sum[0];
        for (int b = 1; b < n_blocks; b++) scales += scale[b], sum += block_sum[b];
        float t = -0x1.8p23f * scales;
        for (int b = 0; b < n_blocks; b++) {
            int dot = 0, k = g * m->w.group + b * 32;
            for (int i = k; i < k + 32; i++) dot += m->code[column * (int)m->w.n_cols + i] * x->q8[row * x->padded + i];
            t = fmaf(0x1.8p23f + (float)dot, scale[b], t);
        }
        acc = fmaf(m->scale[column * groups + g], t, acc);
        acc = fmaf(m->bias[column * groups + g], sum, acc);
    }
    return acc;
}

/* How far that may be from the exact product: the middles are taken off rounded, and every sum that still has some is. */
static double affine_by_q8_error(const struct matrix *m, const struct rows *x, int row, int column) {
    const int n_blocks = m->w.group / 32;
    double most = 0;
    for (int k = 0; n_blocks > 1 && k < m->w.n_cols; k += 32)
        most += fabs((double)m->scale[(column * m->w.n_cols + k) / m->w.group]) * x->q8_scale[(row * x->padded + k) / 32];
    return most * 0.75 * (n_blocks + 1);
}

static void check_close(const struct linear_kernel *k, const struct matrix *m, const struct inputs *x, const float *y) {
    int n_in = (int)m->w.n_cols, n_out = (int)m->w.n_rows;
    const int by_q8 = strcmp(k->arithmetic, "fma codes by q8") == 0;
    for (int i = 0; i < MAX_ROWS; i++) {
        for (int c = 0; c < n_out; c++) {
            double sum = 0, size = 0, more = 1e-12;
            if (by_q8) {
                float want = affine_by_q8(m, &x->rows, i, c);
                assert_same_bits(&y[i * n_out + c], &want, 1, k, "beside the order in words", i);
                more += affine_by_q8_error(m, &x->rows, i, c);
            }
            for (int j = 0; j < n_in; j++) {
                double t = m->value[c * n_in + j] * x->as[k->form][i * n_in + j];
                sum += t, size += fabs(t);
                if (m->w.repr->kind == REPR_AFFINE) size += 0.11 * fabs(x->as[k->form][i * n_in + j]);
            }
            if (!(fabs(y[i * n_out + c] - sum) <= 6e-7 * size + more))
                fail_msg("%s (%s), %s %d bits, k %d: row %d column %d is %.9g, not %.9g", k->name, k->arithmetic, m->w.repr->name,
                         m->w.bits, n_in, i, c, (double)y[i * n_out + c], sum);
        }
    }
}

/* Streams, from their first tile or a later one on, with results where they belong or side by side. */
static void check_streams(const struct linear_kernel *k, const struct linear *l, const struct inputs *x, const float *base) {
    int n_out = l->n_out, apart = n_out / (STREAMS * STREAM_TILE) * STREAM_TILE, most = k->stream_rows < MAX_ROWS ? k->stream_rows : MAX_ROWS;
    float *y = malloc(sizeof *y * MAX_ROWS * (size_t)n_out);
    for (int n = k->min_rows; n <= most && apart > 0; n++)
        for (int close = 0; close < 2; close++) {
            int col0 = (int)(random_u32() % (unsigned)(apart / STREAM_TILE)) * STREAM_TILE, col1 = apart, x0 = (int)(random_u32() % (unsigned)(MAX_ROWS - n + 1));
            struct run r = {.k = k, .l = l, .x = &x->rows, .x0 = x0, .n_rows = n, .apart = apart, .y_apart = close ? col1 - col0 : apart};
            for (int i = 0; i < n * n_out; i++) y[i] = 1;
            run(&r, col0, col1, close, y);
            for (int i = 0; i < n; i++)
                for (int s = 0; s < STREAMS; s++)
                    for (int c = col0; c < col1; c++) {
                        float want = base[(x0 + i) * n_out + s * apart + c] + (close ? 1 : 0), got = y[i * n_out + s * r.y_apart + c];
                        if (memcmp(&want, &got, sizeof got) != 0)
                            fail_msg("%s (%s): stream %d of %d rows: row %d column %d is %.9g, not %.9g", k->name, k->arithmetic, s, n, i, c, (double)got, (double)want);
                    }
        }
    free(y);
}

/* What one kernel owes against `base`, the results of every row alone. */
static void check_kernel(const struct linear_kernel *k, const struct linear *l, const struct inputs *x, const float *base, int every) {
    int n_out = l->n_out;
    static const int some[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 32, 33, 47, 70};
    float *y = malloc(sizeof *y * MAX_ROWS * (size_t)n_out), *part = malloc(sizeof *part * MAX_ROWS * (size_t)n_out);
    int high = k->max_rows < MAX_ROWS ? k->max_rows : MAX_ROWS;
    for (int i = 0; i < (every ? MAX_ROWS : (int)(sizeof some / sizeof *some)); i++) {
        int n = every ? i + 1 : some[i], x0 = n < MAX_ROWS ? (int)(random_u32() % (unsigned)(MAX_ROWS - n)) : 0;
        if (n < k->min_rows || n > high) continue;
        struct run r = {.k = k, .l = l, .x = &x->rows, .x_row = NULL, .x0 = x0, .n_rows = n};
        memset(y, 0xff, sizeof *y * (size_t)(n * n_out));
        run(&r, 0, n_out, 0, y);
        assert_same_bits(y, base + x0 * n_out, n * n_out, k, "not as alone", n);
    }
    for (int round = 0; round < 4; round++) {
        int n = k->min_rows + (int)(random_u32() % (unsigned)(high - k->min_rows + 1));
        int tiles = (n_out + k->tile - 1) / k->tile, a = (int)(random_u32() % (unsigned)tiles), b = a + 1 + (int)(random_u32() % (unsigned)(tiles - a));
        int col0 = a * k->tile, col1 = b * k->tile < n_out ? b * k->tile : n_out;
        int32_t from[MAX_ROWS];
        for (int i = 0; i < n; i++) from[i] = (int32_t)(random_u32() % MAX_ROWS);
        struct run r = {.k = k, .l = l, .x = &x->rows, .x_row = from, .x0 = 0, .n_rows = n};
        for (int i = 0; i < n * n_out; i++) part[i] = y[i] = random_float();
        run(&r, col0, col1, round & 1, part);
        for (int i = 0; i < n; i++)
            for (int c = col0; c < col1; c++) y[i * n_out + c] = (round & 1 ? y[i * n_out + c] : 0) + base[from[i] * n_out + c];
        assert_same_bits(part, y, n * n_out, k, "gathered rows of a column range", n);
    }
    free(y), free(part);
}

static int check_matrix(const struct cpu_isa *isa, struct matrix *m, int every) {
    struct inputs x = inputs_new((int)m->w.n_cols);
    int n_out = (int)m->w.n_rows, checked = 0;
    decoding = m;
    float *base = malloc(sizeof *base * MAX_ROWS * (size_t)n_out);
    for (int i = 0; isa->kernels[i]; i++) {
        const struct linear_kernel *lead = isa->kernels[i];
        if (!serves(lead, &m->w) || lead->min_rows > 1) continue;
        struct linear l = linear_new(lead, &m->w);
        for (int row = 0; row < MAX_ROWS; row++) {
            struct run r = {.k = lead, .l = &l, .x = &x.rows, .x_row = NULL, .x0 = row, .n_rows = 1};
            run(&r, 0, n_out, 0, base + row * n_out);
        }
        check_close(lead, m, &x, base);
        for (int j = 0; isa->kernels[j]; j++) {
            const struct linear_kernel *k = isa->kernels[j];
            if (!serves(k, &m->w) || k->layout != lead->layout || strcmp(k->arithmetic, lead->arithmetic) != 0) continue;
            if (k->form != lead->form) continue;
            check_kernel(k, &l, &x, base, every), check_streams(k, &l, &x, base), checked++;
        }
        mem_free_pages(l.data, l.data_bytes);
    }
    free(base);
    inputs_drop(&x);
    return checked;
}

static void every_kernel_for_dense_weights_is_near_fp64_and_the_same_in_any_company(void **state) {
    (void)state;
    static const int sizes[][2] = {{1, 1}, {3, 3}, {37, 31}, {16, 32}, {5, 33}, {70, 96}, {150, 160}, {33, 172}, {66, 515}, {9, 1100}, {50, 2100}};
    for (int i = 0; cpu_isas[i]; i++) {
        if (!chosen(cpu_isas[i])) continue;
        for (size_t r = 0; r < sizeof reprs / sizeof *reprs; r++) {
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes && reprs[r].kind != REPR_AFFINE; s++) {
                struct matrix m = dense_new(&reprs[r], sizes[s][0], sizes[s][1]);
                assert_true(check_matrix(cpu_isas[i], &m, s == 7) > 0);
                matrix_drop(&m);
            }
        }
    }
}

static void every_kernel_for_affine_weights_is_near_fp64_and_the_same_in_any_company(void **state) {
    (void)state;
    static const int bits[] = {2, 3, 4, 5, 6, 8};
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    static const int outs[] = {1, 16, 37, 70, 150};
    int turn = 0;
    for (int i = 0; cpu_isas[i]; i++) {
        if (!chosen(cpu_isas[i])) continue;
        for (int b = 0; b < 6; b++)
            for (int group = 32; group <= 128; group *= 2)
                for (int t = 0; t < 3; t++, turn++) {
                    struct matrix m = affine_new(bits[b], group, types[t], outs[turn % 5], group * (1 + turn % 4));
                    assert_true(check_matrix(cpu_isas[i], &m, group == 64 && t == 0) > 0);
                    matrix_drop(&m);
                }
        for (int b = 0; b < 6; b++) { /* longer than any panel along k */
            struct matrix m = affine_new(bits[b], 64, DTYPE_BF16, 49, 2112);
            assert_true(check_matrix(cpu_isas[i], &m, 0) > 0);
            matrix_drop(&m);
        }
    }
}

/* Every row alone, by the first kernel of that arithmetic. */
static int alone(const struct cpu_isa *isa, const struct matrix *m, const char *arithmetic, const struct inputs *x, float *y) {
    for (int i = 0; isa->kernels[i]; i++) {
        const struct linear_kernel *k = isa->kernels[i];
        if (!serves(k, &m->w) || strcmp(k->arithmetic, arithmetic) != 0 || k->min_rows > 1) continue;
        struct linear l = linear_new(k, &m->w);
        for (int row = 0; row < MAX_ROWS; row++) {
            struct run r = {.k = k, .l = &l, .x = &x->rows, .x_row = NULL, .x0 = row, .n_rows = 1};
            run(&r, 0, l.n_out, 0, y + row * l.n_out);
        }
        mem_free_pages(l.data, l.data_bytes);
        return 1;
    }
    return 0;
}

static void one_arithmetic_gives_the_same_bits_on_every_isa_that_has_it(void **state) {
    (void)state;
    static const int bits[] = {2, 3, 4, 5, 6, 8};
    int n_pairs = 0;
    for (int b = 0; b < 6; b++) {
        struct matrix m = affine_new(bits[b], 64, DTYPE_F16, 37, 448);
        struct inputs x = inputs_new(448);
        float *one = malloc(sizeof *one * MAX_ROWS * 37), *two = malloc(sizeof *two * MAX_ROWS * 37);
        decoding = &m;
        for (int i = 0; cpu_isas[i]; i++)
            for (int j = 0; j < i && chosen(cpu_isas[i]); j++)
                for (int k = 0; cpu_isas[i]->kernels[k] && chosen(cpu_isas[j]); k++) {
                    const struct linear_kernel *kernel = cpu_isas[i]->kernels[k];
                    if (kernel->min_rows > 1 || !serves(kernel, &m.w) || !alone(cpu_isas[j], &m, kernel->arithmetic, &x, one)) continue;
                    assert_true(alone(cpu_isas[i], &m, kernel->arithmetic, &x, two));
                    assert_same_bits(one, two, MAX_ROWS * 37, kernel, cpu_isas[j]->name, MAX_ROWS), n_pairs++;
                }
        free(one), free(two);
        inputs_drop(&x), matrix_drop(&m);
    }
    for (int i = 0; cpu_isas[i] && !only; i++) /* it shares its integer kernels with avx512 */
        if (strcmp(cpu_isas[i]->name, "avx512bf16") == 0 && chosen(cpu_isas[i])) assert_true(n_pairs >= 12);
}

static void every_row_class_of_a_weight_has_a_kernel_of_one_arithmetic(void **state) {
    (void)state;
    for (int i = 0; cpu_isas[i]; i++) {
        for (int p = PRECISION_DEFAULT; p <= PRECISION_HIGH && chosen(cpu_isas[i]); p++) {
            struct cpu c = {.isa = cpu_isas[i], .precision = (enum precision)p, .kernels = cpu_isas[i]->kernels};
            while (c.kernels[c.n_kernels]) c.n_kernels++;
            struct backend b = {.device = &c};
            struct matrix m[] = {affine_new(5, 64, DTYPE_BF16, 20, 128), dense_new(&reprs[0], 3, 40), dense_new(&reprs[1], 3, 40),
                                 dense_new(&reprs[2], 3, 40), dense_new(&reprs[4], 3, 40)};
            for (size_t w = 0; w < sizeof m / sizeof *m; w++) {
                struct linear l;
                assert_int_equal(cpu_linear_choose(&b, &m[w].w, &l, NULL), 0);
                for (int class = 0; class < N_ROW_CLASSES; class++) {
                    assert_string_equal(l.kernel[class]->arithmetic, l.kernel[0]->arithmetic);
                    assert_int_equal(l.kernel[class]->form, l.kernel[0]->form);
                    assert_true(l.kernel[class]->max_rows >= row_class_limit[class]);
                }
                if (w == 0) assert_int_equal(l.kernel[0]->form, p == PRECISION_HIGH ? FORM_BF16 : FORM_Q8);
                if (w == 3) assert_int_equal(l.kernel[0]->form, FORM_BF16);
                matrix_drop(&m[w]);
            }
        }
    }
}

/* What a kernel made of its inputs for one part must not serve another that groups them otherwise. */
static void parts_of_an_op_may_differ_in_the_size_of_their_groups(void **state) {
    (void)state;
    enum { PARTS = 3, N_OUT = 150, K = 256 };
    static const int rows[] = {1, 4, 8, 12, 16, 40, MAX_ROWS};
    float *y = malloc(sizeof *y * MAX_ROWS * N_OUT * PARTS), *base = malloc(sizeof *base * MAX_ROWS * N_OUT * PARTS);
    for (int i = 0; cpu_isas[i]; i++) {
        if (!chosen(cpu_isas[i])) continue;
        struct weft_error e;
        struct cpu c = {.isa = cpu_isas[i], .kernels = cpu_isas[i]->kernels};
        while (c.kernels[c.n_kernels]) c.n_kernels++;
        assert_int_equal(pool_new(&c.pool, 1, &e), 0);
        struct backend b = {.device = &c};
        struct matrix m[PARTS];
        struct linear l[PARTS];
        struct inputs x = inputs_new(K);
        struct step_limits limits = {.max_rows = MAX_ROWS, .max_width = K};
        size_t scratch_bytes = cpu_op_linear.scratch_bytes(&c, &limits);
        void *scratch = mem_map_pages(scratch_bytes);
        struct op op = {.kind = OP_LINEAR, .linear = {.x = x.rows, .n_parts = PARTS}};
        for (int p = 0; p < PARTS; p++) {
            float *part_y = y + p * MAX_ROWS * N_OUT;
            m[p] = affine_new(4, 32 << (p + 1) % PARTS, DTYPE_BF16, N_OUT, K);
            assert_int_equal(cpu_linear_choose(&b, &m[p].w, &l[p], &e), 0);
            l[p].data = mem_map_pages(l[p].data_bytes);
            l[p].kernel[0]->layout->pack(&m[p].w, l[p].data, 0, N_OUT);
            assert_true(alone(cpu_isas[i], &m[p], l[p].kernel[0]->arithmetic, &x, base + p * MAX_ROWS * N_OUT));
            op.linear.part[p].w = &l[p], op.linear.part[p].y = part_y, op.linear.part[p].y_stride = N_OUT;
        }
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            struct pool_taken taken = {0};
            op.linear.n_rows = rows[r];
            cpu_op_take(&c, &cpu_op_linear, &op, &taken, 0, 1, scratch);
            for (int p = 0; p < PARTS; p++)
                assert_same_bits(y + p * MAX_ROWS * N_OUT, base + p * MAX_ROWS * N_OUT, rows[r] * N_OUT, l[p].kernel[0], "a part of an op", rows[r]);
        }
        for (int p = 0; p < PARTS; p++) mem_free_pages(l[p].data, l[p].data_bytes), matrix_drop(&m[p]);
        mem_free_pages(scratch, scratch_bytes);
        inputs_drop(&x);
        pool_free(c.pool);
    }
    free(y), free(base);
}

int main(int argc, char **argv) {
    if (argc > 1) only = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_for_dense_weights_is_near_fp64_and_the_same_in_any_company),
        cmocka_unit_test(every_kernel_for_affine_weights_is_near_fp64_and_the_same_in_any_company),
        cmocka_unit_test(one_arithmetic_gives_the_same_bits_on_every_isa_that_has_it),
        cmocka_unit_test(every_row_class_of_a_weight_has_a_kernel_of_one_arithmetic),
        cmocka_unit_test(parts_of_an_op_may_differ_in_the_size_of_their_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "help_device.h"

#include <math.h>

static int device_open(struct backend *b, const struct backend_options *o, struct weft_error *e) {
    (void)o, (void)e;
    *b = (struct backend){.table = &help_device};
    return 0;
}
static void *memory_new(struct backend *b, size_t bytes) { return (void)b, mem_map_pages(bytes); }
static void memory_free(struct backend *b, void *p, size_t bytes) { (void)b, mem_free_pages(p, bytes); }
static void memory_release(struct backend *b, void *p, size_t bytes) { (void)b, memset(p, 0, bytes); }
static void copy(struct backend *b, void *to, const void *from, size_t bytes) { (void)b, memcpy(to, from, bytes); }

static int channels(const struct delta_shape *d) { return 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim; }

/* Input `back` rows before row i of the group: of this step, of the pending rows, of the state. */
static const float *conv_input(const struct delta_shape *d, const struct delta_group *g, const float *qkv, int i) {
    int c = channels(d), n = d->conv_kernel - 1;
    if (i >= 0) return qkv + (size_t)(g->row0 + i) * (size_t)c;
    i += g->n_pending;
    if (i >= 0) return g->pending.conv_in + (size_t)i * (size_t)c;
    return g->conv + (size_t)(n + i) * (size_t)c;
}

static void prepare(const struct op_delta_prepare *p) {
    const struct delta_shape *d = &p->shape;
    int c = channels(d);
    for (int n = 0; n < p->n_groups; n++)
        for (int i = 0; i < p->groups[n].n_rows; i++) {
            size_t row = (size_t)(p->groups[n].row0 + i);
            for (int ch = 0; ch < c; ch++) {
                float sum = 0;
                for (int t = 0; t < d->conv_kernel; t++)
                    sum += p->conv_weight[ch * d->conv_kernel + t] *
                           conv_input(d, &p->groups[n], p->qkv, i + t - d->conv_kernel + 1)[ch];
                p->mixed[row * (size_t)c + (size_t)ch] = sum / (1 + fabsf(sum));
            }
            for (int h = 0; h < d->value_heads; h++) {
                size_t at = row * (size_t)d->value_heads + (size_t)h;
                p->decay[at] = 1 / (1 + fabsf(p->a[at])), p->beta[at] = 1 / (2 + fabsf(p->b[at]));
            }
        }
}

/* S = decay S + k u', one head. */
static void fold_row(const struct delta_shape *d, float *state, int h, float decay, const float *k, const float *u) {
    float *s = state + (size_t)h * (size_t)(d->key_dim * d->value_dim);
    for (int i = 0; i < d->key_dim; i++)
        for (int j = 0; j < d->value_dim; j++) s[i * d->value_dim + j] = decay * s[i * d->value_dim + j] + k[i] * u[j];
}

static void fold_log(const struct delta_shape *d, float *state, const struct delta_log *l, int i) {
    int per = d->value_heads / d->key_heads;
    for (int h = 0; h < d->value_heads; h++)
        fold_row(d, state, h, l->decay[i * d->value_heads + h], l->k + (size_t)(i * d->key_heads + h / per) * (size_t)d->key_dim,
                 l->u + (size_t)(i * d->value_heads + h) * (size_t)d->value_dim);
}

static void run_row(const struct op_delta *p, float *state, const struct delta_group *g, int i) {
    const struct delta_shape *d = &p->shape;
    size_t row = (size_t)(g->row0 + i);
    int per = d->value_heads / d->key_heads, keys = d->key_heads * d->key_dim;
    const float *mixed = p->mixed + row * (size_t)channels(d);
    for (int h = 0; h < d->value_heads; h++) {
        float u[64], decay = p->decay[row * (size_t)d->value_heads + (size_t)h];
        const float *k = mixed + keys + (h / per) * d->key_dim, *v = mixed + 2 * keys + h * d->value_dim;
        const float *s = state + (size_t)h * (size_t)(d->key_dim * d->value_dim);
        for (int j = 0; j < d->value_dim; j++) {
            float sum = 0;
            for (int x = 0; x < d->key_dim; x++) sum += decay * s[x * d->value_dim + j] * k[x];
            u[j] = p->beta[row * (size_t)d->value_heads + (size_t)h] * (v[j] - sum);
        }
        fold_row(d, state, h, decay, k, u);
        if (g->fold == FOLD_ALL) continue;
        g->log.decay[i * d->value_heads + h] = decay;
        memcpy(g->log.k + (size_t)(i * d->key_heads + h / per) * (size_t)d->key_dim, k, sizeof(float) * (size_t)d->key_dim);
        memcpy(g->log.u + (size_t)(i * d->value_heads + h) * (size_t)d->value_dim, u, sizeof(float) * (size_t)d->value_dim);
    }
    if (g->fold != FOLD_ALL)
        memcpy(g->log.conv_in + (size_t)i * (size_t)channels(d), p->qkv + row * (size_t)channels(d),
               sizeof(float) * (size_t)channels(d));
}

/* The Kc-1 inputs before row i of the group. */
static void save_conv(const struct op_delta *p, const struct delta_group *g, int i, float *out) {
    int n = p->shape.conv_kernel - 1, c = channels(&p->shape);
    for (int t = 0; t < n; t++)
        memcpy(out + (size_t)(t * c), conv_input(&p->shape, g, p->qkv, i - n + t), sizeof(float) * (size_t)c);
}

static void delta(const struct op_delta *p) {
    const struct delta_shape *d = &p->shape;
    size_t n_state = (size_t)(d->value_heads * d->key_dim * d->value_dim), n_conv = (size_t)((d->conv_kernel - 1) * channels(d));
    for (int n = 0; n < p->n_groups; n++) {
        const struct delta_group *g = &p->groups[n];
        float state[2048], conv[1024];
        assert_true(n_state <= 2048 && n_conv <= 1024);
        memcpy(state, g->state, n_state * sizeof(float));
        for (int i = 0; i < g->n_pending; i++) fold_log(d, state, &g->pending, i);
        if (g->fold == FOLD_PENDING) memcpy(g->state, state, n_state * sizeof(float));
        for (int i = 0, at = 0; i < g->n_rows; i++) {
            run_row(p, state, g, i);
            if (at == g->n_snapshots || g->snapshots[at].row != i + 1) continue;
            memcpy(g->snapshots[at].state, state, n_state * sizeof(float));
            save_conv(p, g, i + 1, g->snapshots[at++].conv);
        }
        if (g->fold == FOLD_NOTHING) continue;
        save_conv(p, g, g->fold == FOLD_ALL ? g->n_rows : 0, conv);
        memcpy(g->conv, conv, n_conv * sizeof(float));
        if (g->fold == FOLD_ALL) memcpy(g->state, state, n_state * sizeof(float));
    }
}

static void store(const struct kv_layer *l, const struct attention_group *g, int dim, int heads, int i, const float *k,
                  const float *v) {
    int row = g->n_before + i, low = row < l->kv_start, page = (low ? g->low_pages : g->high_pages)[row / BLOCK_ROWS];
    const struct kv_store *s = low ? &l->low : &l->high;
    assert_true(page >= 0);
    for (int h = 0; h < heads; h++) {
        uint8_t *at = s->base + page * s->page_stride + h * s->head_stride;
        s->k->k.write_row(at, (struct kv_shape){s->k_bits, s->group, dim}, row % BLOCK_ROWS, k + h * dim);
        s->v->v.write_row(at + s->k_bytes, (struct kv_shape){s->v_bits, s->group, dim}, row % BLOCK_ROWS, v + h * dim);
    }
}

static void attention_prepare(const struct op_attention_prepare *p) {
    int dim = p->shape.head_dim, width = p->shape.n_kv_heads * dim;
    float k[256];
    assert_true(width <= 256);
    for (int n = 0; n < p->n_groups; n++)
        for (int i = 0; i < p->groups[n].n_rows; i++) {
            int row = p->groups[n].row0 + i;
            for (int x = 0; x < width; x++) {
                k[x] = p->k[(size_t)row * (size_t)width + (size_t)x];
                for (int a = 0; a < 3; a++) k[x] += .01f * (float)(a + 1) * p->positions[a * p->n_rows + row];
            }
            store(&p->kv, &p->groups[n], dim, p->shape.n_kv_heads, i, k, p->v + (size_t)row * (size_t)width);
        }
}

static void run(struct backend *b, const struct op *ops, int n) {
    (void)b;
    for (int i = 0; i < n; i++) {
        if (ops[i].kind == OP_DELTA_PREPARE) prepare(&ops[i].delta_prepare);
        else if (ops[i].kind == OP_DELTA) delta(&ops[i].delta);
        else if (ops[i].kind == OP_ATTENTION_PREPARE) attention_prepare(&ops[i].attention_prepare);
        else fail_msg("op %d", ops[i].kind);
    }
}

const struct backend_table help_device = {
    .version = BACKEND_VERSION, .name = "help", .open = device_open, .memory_new = memory_new, .memory_free = memory_free,
    .memory_release = memory_release, .copy = copy, .run = run,
};

void help_shape(struct cache_shape *out) {
    *out = (struct cache_shape){
        .n_attention = 3, .n_mtp = 1, .n_delta = 3, .n_kv_heads = 2, .head_dim = 64, .hidden = HELP_HIDDEN,
        .delta = {.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 16, .conv_kernel = 4},
    };
}

uint32_t help_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* In [-1, 1), from what it is a value of. */
static float value_of(int token, int layer, int what, int x) {
    uint64_t h = hash_mix(hash_mix((uint64_t)(uint32_t)token, (uint64_t)(layer * 8 + what)), (uint64_t)x);
    return (float)((double)(h >> 40) / (1 << 23) - 1);
}

static float *values(const struct batch *b, int layer, int what, int width) {
    float *out = malloc(sizeof *out * (size_t)width * (size_t)b->n_rows + 64);
    for (int g = 0; g < b->n_groups; g++)
        for (int i = 0; i < b->groups[g].n_rows; i++)
            for (int x = 0; x < width; x++)
                out[(size_t)(b->groups[g].row0 + i) * (size_t)width + (size_t)x] =
                    value_of(b->groups[g].tokens[i], layer, what, x);
    return out;
}

static void forward_delta(struct cache *c, const struct batch *b, int layer) {
    const struct delta_shape *d = &c->shape.delta;
    int ch = channels(d), width = d->value_heads * d->value_dim;
    struct delta_group *groups = malloc(sizeof *groups * (size_t)b->n_groups);
    for (int g = 0; g < b->n_groups; g++) cache_delta_group(c, b, g, layer, &groups[g]);
    float *qkv = values(b, layer, 0, ch), *a = values(b, layer, 1, d->value_heads),
        *beta_in = values(b, layer, 2, d->value_heads);
    float *mixed = malloc(sizeof *mixed * (size_t)ch * (size_t)b->n_rows),
        *out = malloc(sizeof *out * (size_t)width * (size_t)b->n_rows);
    float *decay = malloc(sizeof *decay * (size_t)(d->value_heads * b->n_rows)),
        *beta = malloc(sizeof *beta * (size_t)(d->value_heads * b->n_rows));
    float weight[4 * 256], gates[2][8] = {{-1, -1, -1, -1, -1, -1, -1, -1}, {0}};
    assert_true(ch * d->conv_kernel <= 1024 && d->value_heads <= 8);
    for (int i = 0; i < ch * d->conv_kernel; i++) weight[i] = value_of(0, layer, 3, i);
    struct op ops[2] = {
        {.kind = OP_DELTA_PREPARE, .wait = 1, .delta_prepare = {.shape = *d, .qkv = qkv, .a = a, .b = beta_in,
         .conv_weight = weight,
         .neg_exp_a_log = gates[0], .dt_bias = gates[1], .mixed = mixed, .decay = decay, .beta = beta, .groups = groups,
         .n_groups = b->n_groups, .n_rows = b->n_rows}},
        {.kind = OP_DELTA, .wait = 1, .delta = {.shape = *d, .qkv = qkv, .mixed = mixed, .decay = decay, .beta = beta, .out = out,
         .groups = groups, .n_groups = b->n_groups}},
    };
    c->options.backend->table->run(c->options.backend, ops, 2);
    free(groups), free(qkv), free(a), free(beta_in), free(mixed), free(out), free(decay), free(beta);
}

static void forward_attention(struct cache *c, const struct batch *b, int layer) {
    int dim = c->shape.head_dim, width = c->shape.n_kv_heads * dim;
    struct attention_group *groups = malloc(sizeof *groups * (size_t)b->n_groups);
    for (int g = 0; g < b->n_groups; g++) cache_attention_group(c, b, g, &groups[g]);
    float *q = values(b, 100 + layer, 0, 2 * width), *k = values(b, 100 + layer, 1, width), *v = values(b, 100 + layer, 2, width);
    float *out = malloc(sizeof *out * (size_t)width * (size_t)b->n_rows),
        *positions = malloc(sizeof *positions * 3 * (size_t)b->n_rows);
    float gain[64], inv_freq[32];
    uint8_t axis[32];
    assert_true(dim == 64);
    for (int i = 0; i < 64; i++) gain[i] = 1, inv_freq[i / 2] = 1 / (float)(i / 2 + 1), axis[i / 2] = (uint8_t)(i / 2 % 3);
    for (int i = 0; i < b->n_rows; i++)
        for (int x = 0; x < 3; x++) positions[x * b->n_rows + i] = (float)cache_positions(c)[3 * i + x];
    struct op op = {.kind = OP_ATTENTION_PREPARE, .wait = 1, .attention_prepare = {
        .shape = {.n_heads = c->shape.n_kv_heads, .n_kv_heads = c->shape.n_kv_heads, .head_dim = dim, .rotary_dim = dim},
        .q_gate = q, .k = k, .v = v, .q_gain = gain, .k_gain = gain, .eps = 1e-6f, .inv_freq = inv_freq, .axis_of_pair = axis,
        .positions = positions, .q = out, .groups = groups, .n_groups = b->n_groups, .n_rows = b->n_rows}};
    cache_kv_layer(c, layer, &op.attention_prepare.kv);
    c->options.backend->table->run(c->options.backend, &op, 1);
    free(groups), free(q), free(k), free(v), free(out), free(positions);
}

void help_forward(struct cache *c, const struct batch *b) {
    int n = c->shape.n_attention, main_layers = n - c->shape.n_mtp;
    for (int i = 0; i < c->shape.n_delta && !b->mtp; i++) forward_delta(c, b, i);
    for (int i = b->mtp ? main_layers : 0; i < (b->mtp ? n : main_layers); i++) forward_attention(c, b, i);
}

static int step(struct sequence *s, const int32_t *tokens, int n, int mtp, int undo, int keep) {
    struct group g = {.seq = s, .n_rows = n, .tokens = tokens, .undo = undo};
    struct batch b = {.groups = &g, .n_groups = 1, .mtp = mtp};
    struct weft_error e;
    int code = cache_begin(s->cache, &b, &e);
    if (code) return code;
    help_forward(s->cache, &b);
    if (keep < 0) keep = n;
    cache_commit(s->cache, &b, &keep);
    return 0;
}

int help_step(struct sequence *s, const int32_t *tokens, int n, int undo, int keep) { return step(s, tokens, n, 0, undo, keep); }
int help_step_mtp(struct sequence *s, const int32_t *tokens, int n, int keep) { return step(s, tokens, n, 1, 0, keep); }

struct sequence *help_stepped(struct cache *c, const int32_t *tokens, int n) {
    struct sequence *s;
    assert_int_equal(sequence_new(&s, c, NULL), 0);
    for (int i = 0; i < n; i++) assert_int_equal(help_step(s, tokens + i, 1, 0, -1), 0);
    sequence_fold(s);
    return s;
}

static const uint8_t *block_of(const struct sequence *s, int layer, int head, int row, struct kv_store *store_out) {
    struct kv_layer l;
    cache_kv_layer(s->cache, layer, &l);
    int low = row < l.kv_start, page = s->pages[low ? LOW : layer_form(s->cache, layer)][row / BLOCK_ROWS];
    assert_true(page >= 0);
    *store_out = low ? l.low : l.high;
    return store_out->base + page * store_out->page_stride + head * store_out->head_stride;
}

static void assert_same_rows(const struct sequence *a, const struct sequence *b, int layer, int n) {
    int dim = a->cache->shape.head_dim;
    for (int row = 0; row < n; row++)
        for (int h = 0; h < a->cache->shape.n_kv_heads; h++) {
            struct kv_store s, t;
            const uint8_t *x = block_of(a, layer, h, row, &s), *y = block_of(b, layer, h, row, &t);
            float values_a[2][64], values_b[2][64];
            struct kv_shape k = {s.k_bits, s.group, dim}, v = {s.v_bits, s.group, dim};
            s.k->k.read_row(x, k, row % BLOCK_ROWS, values_a[0]),
            s.v->v.read_row(x + s.k_bytes, v, row % BLOCK_ROWS, values_a[1]);
            t.k->k.read_row(y, k, row % BLOCK_ROWS, values_b[0]),
            t.v->v.read_row(y + t.k_bytes, v, row % BLOCK_ROWS, values_b[1]);
            assert_memory_equal(values_a, values_b, sizeof values_a);
        }
}

void help_assert_same(struct sequence *a, struct sequence *b) {
    const struct cache *c = a->cache;
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->next_position, b->next_position);
    if (a->rows == 0) return;
    assert_memory_equal(a->tokens, b->tokens, sizeof *a->tokens * (size_t)a->rows);
    assert_memory_equal(a->positions, b->positions, 3 * sizeof *a->positions * (size_t)a->rows);
    sequence_fold(a), sequence_fold(b);
    assert_memory_equal(items_at(&c->states, a->slot), items_at(&b->cache->states, b->slot), cache_state_bytes(c));
    int n_mtp = a->mtp_rows < b->mtp_rows ? a->mtp_rows : b->mtp_rows;
    for (int layer = 0; layer < c->shape.n_attention; layer++)
        assert_same_rows(a, b, layer, layer < c->shape.n_attention - c->shape.n_mtp ? a->rows : n_mtp);
}

int help_each_device(int (*run_group)(struct backend *device)) {
    struct backend b = {.table = &help_device};
    int failed = run_group(&b);
    struct pool *pool;
    if (pool_new(&pool, 1, NULL)) return failed + 1;
    for (int i = 0; backend_cpu.isa_names[i]; i++) {
        struct backend_options o = {.pool = pool, .isa = backend_cpu.isa_names[i]};
        struct step_limits limits = {.max_rows = 1024, .max_groups = 8, .max_context_rows = 4096, .n_heads = 2, .n_kv_heads = 2,
                                     .head_dim = 64, .key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 16,
                                     .conv_kernel = 4, .max_width = 256};
        if (backend_cpu.open(&b, &o, NULL)) continue; /* not on this processor */
        printf("on cpu, %s\n", o.isa);
        failed += backend_cpu.reserve(&b, &limits, NULL) ? 1 : run_group(&b);
        backend_cpu.close(&b);
    }
    pool_free(pool);
    return failed;
}

/* MLX prompt caches: one entry a layer of the model, arrays named by the path into mlx-lm's list of caches.
 *
 *   attention, bf16     i.0 keys, i.1 values [1, Hkv, T, D]
 *   attention, affine   i.0.0 .1 .2 keys: codes, scales, biases; i.1.0 .1 .2 values; metadata 0.i.{0,1,2}: rows, group, bits
 *   delta               i.0.0 convolution inputs [1, Kc-1, C], i.0.1 state [1, Hv, Dv, Dk], i.1 and i.2 empty (older: i.0, i.1)
 *
 * Metadata 2.i names the class of entry i, 1.KEY is the writer's own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "cache/session.h"
#include "cache/state.h"
#include "checkpoint/safetensors.h"
#include "quant/convert.h"

enum { ARRAYS_PER_LAYER = 6, NAME_BYTES = 24, MAX_KEY_DIM = 4096 };

/* ---- what both directions share ---- */

/* The form that every row of an attention layer has, or NULL when they differ. */
static const struct kv_scheme *only_scheme(const struct cache *c, int layer, int n_rows) {
    if (n_rows <= c->options.kv_start) return &c->low_scheme;
    const struct kv_scheme *high = &c->schemes[layer];
    return c->options.kv_start == 0 || high->k->kind == c->low_scheme.k->kind ? high : NULL;
}

/* Block of a kv head that holds the row, and its scheme. In device memory. */
static uint8_t *block_at(const struct sequence *s, int layer, int head, int row, const struct kv_scheme **scheme) {
    const struct cache *c = s->cache;
    int form = row < c->options.kv_start ? LOW : HIGH;
    *scheme = form == LOW ? &c->low_scheme : &c->schemes[layer];
    size_t head_bytes = kv_k_bytes(*scheme, c->shape.head_dim) + kv_v_bytes(*scheme, c->shape.head_dim);
    return items_at(&c->pages[form], s->pages[form][row / BLOCK_ROWS]) + c->layer_offset[form][layer] + (size_t)head * head_bytes;
}

/* One block at a time in host memory. */
struct block { const struct kv_scheme *scheme; uint8_t *bytes, *device; size_t n_bytes; int is_v; };

static void read_block(struct block *b, const struct sequence *s, int layer, int head, int row, int is_v) {
    const struct cache *c = s->cache;
    uint8_t *at = block_at(s, layer, head, row, &b->scheme);
    size_t k = kv_k_bytes(b->scheme, c->shape.head_dim), v = kv_v_bytes(b->scheme, c->shape.head_dim);
    b->is_v = is_v, b->device = at + (is_v ? k : 0), b->n_bytes = is_v ? v : k;
    c->options.backend->table->copy(c->options.backend, b->bytes, b->device, b->n_bytes);
}

static void write_block(const struct block *b, const struct sequence *s) {
    s->cache->options.backend->table->copy(s->cache->options.backend, b->device, b->bytes, b->n_bytes);
}

static size_t largest_block(const struct cache *c) {
    size_t most = 0;
    for (int i = -1; i < c->shape.n_attention; i++) {
        const struct kv_scheme *k = i < 0 ? &c->low_scheme : &c->schemes[i];
        size_t sides[2] = {kv_k_bytes(k, c->shape.head_dim), kv_v_bytes(k, c->shape.head_dim)};
        for (int v = 0; v < 2; v++)
            if (sides[v] > most) most = sides[v];
    }
    return most;
}

static struct kv_shape block_shape(const struct block *b, int dim) {
    return b->is_v ? kv_v_shape(b->scheme, dim) : kv_k_shape(b->scheme, dim);
}
static const struct kv_side *block_side(const struct block *b) { return b->is_v ? &b->scheme->v->v : &b->scheme->k->k; }

static int check_layout(const struct cache *c, const struct mlx_layout *l) {
    int n = 0;
    for (int i = 0; i < l->n_layers; i++) n += l->is_attention[i] != 0;
    return n == c->shape.n_attention - c->shape.n_mtp && l->n_layers - n == c->shape.n_delta &&
        c->shape.delta.key_dim <= MAX_KEY_DIM;
}

/* ---- writing ---- */

struct names { char (*text)[NAME_BYTES]; int n; };
static const char *add_name(struct names *names, const char *format, int i, int j, int k) {
    char *out = names->text[names->n++];
    snprintf(out, NAME_BYTES, format, i, j, k);
    return out;
}

static int describe_attention(const struct sequence *s, const struct kv_scheme *k, int i, struct names *names,
                              struct tensor_spec *out) {
    const struct cache_shape *shape = &s->cache->shape;
    int n = 0, bits[2] = {k->k_bits, k->v_bits};
    for (int side = 0; side < 2; side++) {
        struct tensor_spec t = {.dtype = k->k->kind == KV_F32 ? DTYPE_F32 : DTYPE_BF16, .n_dims = 4,
                                .shape = {1, shape->n_kv_heads, s->rows, shape->head_dim}};
        if (k->k->kind != KV_AFFINE) {
            t.name = add_name(names, "%d.%d", i, side, 0), out[n++] = t;
            continue;
        }
        for (int j = 0; j < 3; j++) {
            t.name = add_name(names, "%d.%d.%d", i, side, j), t.dtype = j ? DTYPE_BF16 : DTYPE_U32;
            t.shape[3] = j ? shape->head_dim / k->group : shape->head_dim * bits[side] / 32, out[n++] = t;
        }
    }
    return n;
}

static int describe_delta(const struct sequence *s, int i, struct names *names, struct tensor_spec *out) {
    const struct delta_shape *d = &s->cache->shape.delta;
    enum dtype inputs = s->cache->shape.f32_rows ? DTYPE_F32 : DTYPE_BF16;
    out[0] = (struct tensor_spec){add_name(names, "%d.0.0", i, 0, 0), inputs, 3, {1, d->conv_kernel - 1, delta_channels(d)}};
    const char *state = add_name(names, "%d.0.1", i, 0, 0);
    out[1] = (struct tensor_spec){state, DTYPE_F32, 4, {1, d->value_heads, d->value_dim, d->key_dim}};
    out[2] = (struct tensor_spec){add_name(names, "%d.1", i, 0, 0), DTYPE_F32, 1, {0}};
    out[3] = (struct tensor_spec){add_name(names, "%d.2", i, 0, 0), DTYPE_F32, 1, {0}};
    return 4;
}

struct mlx_output { struct safetensors_writer *w; struct sequence *s; struct block block; int code; struct weft_error *e; };

static void put(struct mlx_output *o, const void *bytes, size_t n) {
    if (!o->code && n) o->code = safetensors_write(o->w, bytes, n, o->e);
}

/* Array `part` of one side: 0 codes or values, 1 scales, 2 biases. */
static void put_side(struct mlx_output *o, int layer, int is_v, int part) {
    const struct sequence *s = o->s;
    int dim = s->cache->shape.head_dim;
    for (int h = 0; h < s->cache->shape.n_kv_heads; h++)
        for (int row = 0; row < s->rows && !o->code; row++) {
            if (row % BLOCK_ROWS == 0 || row == s->cache->options.kv_start) read_block(&o->block, s, layer, h, row, is_v);
            struct kv_shape shape = block_shape(&o->block, dim);
            if (o->block.scheme->k->kind == KV_AFFINE) {
                uint8_t packed[KV_MAX_DIM];
                uint16_t scales[2][KV_MAX_DIM / 32];
                kv_affine_export(o->block.bytes, is_v, shape, row % BLOCK_ROWS, packed, scales[0], scales[1]);
                if (part == 0) put(o, packed, (size_t)(dim * shape.bits / 8));
                else put(o, scales[part - 1], (size_t)(dim / shape.group) * sizeof **scales);
                continue;
            }
            float values[KV_MAX_DIM];
            uint16_t rounded[KV_MAX_DIM];
            block_side(&o->block)->read_row(o->block.bytes, shape, row % BLOCK_ROWS, values);
            for (int d = 0; d < dim; d++) rounded[d] = bf16_from_float(values[d]);
            if (o->block.scheme->k->kind == KV_F32) put(o, values, (size_t)dim * sizeof *values);
            else put(o, rounded, (size_t)dim * sizeof *rounded);
        }
}

static void put_attention(struct mlx_output *o, int layer) {
    int n_parts = only_scheme(o->s->cache, layer, o->s->rows)->k->kind == KV_AFFINE ? 3 : 1;
    for (int side = 0; side < 2; side++)
        for (int part = 0; part < n_parts; part++) put_side(o, layer, side, part);
}

/* `host` holds one layer's state and convolution inputs as they lie in a slot. */
static void put_delta(struct mlx_output *o, int layer, uint8_t *host) {
    struct cache *c = o->s->cache;
    const struct delta_shape *d = &c->shape.delta;
    c->options.backend->table->copy(c->options.backend, host,
                                    items_at(&c->states, o->s->slot) + (size_t)layer * c->delta.layer_bytes,
                                    c->delta.layer_bytes);
    const float *state = (const float *)host;
    float *conv = (float *)(host + c->delta.conv), row[MAX_KEY_DIM];
    int n_conv = (d->conv_kernel - 1) * delta_channels(d);
    for (int i = 0; i < n_conv && !c->shape.f32_rows; i++) { /* in place: a value is read before its place is written */
        uint16_t rounded = bf16_from_float(conv[i]);
        memcpy((uint8_t *)conv + (size_t)i * sizeof rounded, &rounded, sizeof rounded);
    }
    put(o, conv, (size_t)n_conv * (c->shape.f32_rows ? sizeof *conv : sizeof(uint16_t)));
    for (int h = 0; h < d->value_heads; h++)
        for (int v = 0; v < d->value_dim; v++) {
            for (int k = 0; k < d->key_dim; k++) row[k] = state[(h * d->key_dim + k) * d->value_dim + v];
            put(o, row, (size_t)d->key_dim * sizeof *row);
        }
}

struct metadata { struct text_pair *pairs; int n; struct names names; struct buf tokens; char numbers[2][16]; };

static void add_pair(struct metadata *m, const char *key, const char *value) {
    m->pairs[m->n++] = (struct text_pair){key, value};
}

/* Tokens as text; nothing when a row has none (media) or its position says more than its number. */
static void add_tokens(struct metadata *m, const struct sequence *s) {
    buf_init(&m->tokens);
    for (int i = 0; i < s->rows; i++) {
        if (s->tokens[i] < 0 || s->keys[i] != s->tokens[i]) {
            buf_clear(&m->tokens);
            return;
        }
        buf_printf(&m->tokens, i ? ",%d" : "%d", (int)s->tokens[i]);
    }
    if (!m->tokens.failed) add_pair(m, "1.tokens", m->tokens.data);
}

static void add_layer_pairs(struct metadata *m, const struct sequence *s, int i, int layer) {
    const struct kv_scheme *k = layer < 0 ? NULL : only_scheme(s->cache, layer, s->rows);
    int quantized = k && k->k->kind == KV_AFFINE;
    if (quantized) {
        add_pair(m, add_name(&m->names, "0.%d.%d", i, 0, 0), m->numbers[0]);
        add_pair(m, add_name(&m->names, "0.%d.%d", i, 1, 0), add_name(&m->names, "%d", k->group, 0, 0));
        add_pair(m, add_name(&m->names, "0.%d.%d", i, 2, 0), add_name(&m->names, "%d", k->k_bits, 0, 0));
    } else add_pair(m, add_name(&m->names, "0.%d", i, 0, 0), "");
    add_pair(m, add_name(&m->names, "2.%d", i, 0, 0), !k ? "ArraysCache" : quantized ? "QuantizedKVCache" : "KVCache");
}

static int check_saveable(const struct sequence *s, const char *path, const struct mlx_layout *l, struct weft_error *e) {
    const struct cache *c = s->cache;
    if (!check_layout(c, l)) return error_set(e, WEFT_ERROR_INPUT, "%s: the layers do not fit the cache", path);
    if (s->rows == 0 || s->lost) return error_set(e, WEFT_ERROR_INPUT, "%s: the sequence has nothing to save", path);
    for (int i = 0; i < c->shape.n_attention - c->shape.n_mtp; i++) {
        const struct kv_scheme *k = only_scheme(c, i, s->rows);
        if (!k) return error_set(e, WEFT_ERROR_SUPPORT, "%s: an MLX prompt cache cannot hold rows of two forms", path);
        if (k->k->kind == KV_TURBO)
            return error_set(e, WEFT_ERROR_SUPPORT, "%s: an MLX prompt cache cannot hold turbo rows", path);
    }
    return 0;
}

static int write_mlx(struct mlx_output *o, const char *path, const struct mlx_layout *l, struct tensor_spec *specs,
                     struct metadata *m) {
    struct cache *c = o->s->cache;
    struct names names = m->names;
    int n = 0, attention = 0, delta = 0;
    snprintf(m->numbers[0], sizeof m->numbers[0], "%d", o->s->rows);
    snprintf(m->numbers[1], sizeof m->numbers[1], "%d", o->s->next_position);
    for (int i = 0; i < l->n_layers; i++) {
        add_layer_pairs(m, o->s, i, l->is_attention[i] ? attention : -1);
        names.n = m->names.n;
        n += l->is_attention[i] ? describe_attention(o->s, only_scheme(c, attention++, o->s->rows), i, &names, specs + n)
                                : describe_delta(o->s, i, &names, specs + n);
        m->names.n = names.n;
    }
    if (l->model) add_pair(m, "1.model", l->model);
    add_pair(m, "1.next_position", m->numbers[1]);
    add_tokens(m, o->s);
    if (m->tokens.failed) return error_memory(o->e, path);
    uint8_t *host = mem_alloc(c->delta.layer_bytes);
    if (!host) return error_memory(o->e, path);
    o->code = safetensors_open_writer(&o->w, path, specs, n, m->pairs, m->n, o->e);
    int opened = !o->code;
    attention = 0;
    for (int i = 0; i < l->n_layers && !o->code; i++)
        if (l->is_attention[i]) put_attention(o, attention++);
        else put_delta(o, delta++, host);
    mem_free(host);
    if (!o->code) return safetensors_close_writer(o->w, 1, o->e);
    if (opened) safetensors_close_writer(o->w, 0, NULL);
    return o->code;
}

int session_save_mlx(struct sequence *s, const char *path, const struct mlx_layout *l, struct weft_error *e) {
    CHECK(!s->busy);
    int code = check_saveable(s, path, l, e);
    if (code) return code;
    sequence_fold(s);
    size_t n = (size_t)l->n_layers;
    struct tensor_spec *specs = mem_new(n * ARRAYS_PER_LAYER, sizeof *specs);
    struct metadata m = {.pairs = mem_new(4 * n + 4, sizeof *m.pairs), .names.text = mem_new(n * 14, NAME_BYTES)};
    struct mlx_output o = {.s = s, .e = e, .block.bytes = mem_alloc(largest_block(s->cache))};
    code = specs && m.pairs && m.names.text && o.block.bytes ? write_mlx(&o, path, l, specs, &m) : error_memory(e, path);
    buf_drop(&m.tokens);
    mem_free(specs), mem_free(m.pairs), mem_free(m.names.text), mem_free(o.block.bytes);
    return code;
}

/* ---- reading ---- */

struct mlx_input {
    struct safetensors *file;
    const char *path;
    struct sequence *s;
    int rows;
    struct block block;
    struct weft_error *e;
};

static const struct tensor *find(const struct mlx_input *in, const char *format, int i, int j, int k) {
    char name[NAME_BYTES];
    snprintf(name, sizeof name, format, i, j, k);
    return safetensors_find(in->file, name);
}

static int bad_array(const struct mlx_input *in, int i, const char *what) {
    return error_set(in->e, WEFT_ERROR_INPUT, "%s: layer %d: %s", in->path, i, what);
}

/* Rows of any attention layer; all must agree. */
static int count_rows(struct mlx_input *in, const struct mlx_layout *l) {
    in->rows = -1;
    for (int i = 0; i < l->n_layers; i++) {
        if (!l->is_attention[i]) continue;
        const struct tensor *t = find(in, "%d.%d", i, 0, 0);
        if (!t) t = find(in, "%d.%d.%d", i, 0, 0);
        if (!t || t->n_dims != 4 || t->shape[2] < 1 || t->shape[2] > INT32_MAX / 4)
            return bad_array(in, i, "no keys of an attention layer");
        if (in->rows >= 0 && in->rows != t->shape[2]) return bad_array(in, i, "not as many rows as in other layers");
        in->rows = (int)t->shape[2];
    }
    if (in->rows > 0) return 0;
    return error_set(in->e, WEFT_ERROR_SUPPORT, "%s: no attention layer says how many rows there are", in->path);
}

static int load_plain_side(struct mlx_input *in, int i, int layer, int is_v) {
    struct sequence *s = in->s;
    const struct cache_shape *shape = &s->cache->shape;
    const struct tensor *t = find(in, "%d.%d", i, is_v, 0);
    const int64_t want[4] = {1, shape->n_kv_heads, in->rows, shape->head_dim};
    if (!t || !dtype_is_float(t->dtype) || !tensor_is_shape(t, 4, want))
        return bad_array(in, i, "keys and values are not what the model has");
    for (int h = 0; h < shape->n_kv_heads; h++)
        for (int row = 0; row < in->rows; row++) {
            float values[KV_MAX_DIM];
            if (row % BLOCK_ROWS == 0 || row == s->cache->options.kv_start) read_block(&in->block, s, layer, h, row, is_v);
            tensor_to_floats(t, ((int64_t)h * in->rows + row) * shape->head_dim, shape->head_dim, values);
            struct kv_shape form = block_shape(&in->block, shape->head_dim);
            block_side(&in->block)->write_row(in->block.bytes, form, row % BLOCK_ROWS, values);
            if (row % BLOCK_ROWS == BLOCK_ROWS - 1 || row == in->rows - 1 || row + 1 == s->cache->options.kv_start)
                write_block(&in->block, s);
        }
    return 0;
}

static int load_affine_side(struct mlx_input *in, int i, int layer, int is_v) {
    struct sequence *s = in->s;
    const struct cache_shape *shape = &s->cache->shape;
    const struct kv_scheme *k = only_scheme(s->cache, layer, in->rows);
    const struct tensor *t[3];
    for (int j = 0; j < 3; j++) t[j] = find(in, "%d.%d.%d", i, is_v, j);
    if (!k || k->k->kind != KV_AFFINE)
        return bad_array(in, i, "its rows are quantized and those of this run are not in the same way (see --kv-bits)");
    int bits = is_v ? k->v_bits : k->k_bits;
    const int64_t codes[4] = {1, shape->n_kv_heads, in->rows, shape->head_dim * bits / 32};
    const int64_t scales[4] = {1, shape->n_kv_heads, in->rows, shape->head_dim / k->group};
    if (!t[0] || !t[1] || !t[2] || t[0]->dtype != DTYPE_U32 || t[1]->dtype != DTYPE_BF16 || t[2]->dtype != DTYPE_BF16 ||
        !tensor_is_shape(t[0], 4, codes) || !tensor_is_shape(t[1], 4, scales) || !tensor_is_shape(t[2], 4, scales))
        return bad_array(in, i,
                         "its quantized rows have other bits or groups than those of this run (see --kv-bits, --kv-group-size)");
    size_t code_bytes = (size_t)codes[3] * 4, scale_bytes = (size_t)scales[3] * 2;
    for (int h = 0; h < shape->n_kv_heads; h++)
        for (int row = 0; row < in->rows; row++) {
            size_t at = (size_t)h * (size_t)in->rows + (size_t)row;
            uint16_t sb[2][KV_MAX_DIM / 32];
            if (row % BLOCK_ROWS == 0) read_block(&in->block, s, layer, h, row, is_v);
            for (int j = 0; j < 2; j++) memcpy(sb[j], t[j + 1]->data + at * scale_bytes, scale_bytes);
            kv_affine_import(in->block.bytes, is_v, block_shape(&in->block, shape->head_dim), row % BLOCK_ROWS,
                             t[0]->data + at * code_bytes, sb[0], sb[1]);
            if (row % BLOCK_ROWS == BLOCK_ROWS - 1 || row == in->rows - 1) write_block(&in->block, s);
        }
    return 0;
}

static int load_delta(struct mlx_input *in, int i, int layer, uint8_t *host) {
    struct cache *c = in->s->cache;
    const struct delta_shape *d = &c->shape.delta;
    int newer = find(in, "%d.0.0", i, 0, 0) != NULL;
    const struct tensor *inputs = find(in, newer ? "%d.0.0" : "%d.0", i, 0, 0);
    const struct tensor *state = find(in, newer ? "%d.0.1" : "%d.1", i, 0, 0);
    const int64_t conv_shape[3] = {1, d->conv_kernel - 1, delta_channels(d)};
    const int64_t state_shape[4] = {1, d->value_heads, d->value_dim, d->key_dim};
    if (!inputs || !state || !dtype_is_float(inputs->dtype) || !dtype_is_float(state->dtype) ||
        !tensor_is_shape(inputs, 3, conv_shape) || !tensor_is_shape(state, 4, state_shape))
        return bad_array(in, i, "the state is not what the model has");
    float *to = (float *)host, row[MAX_KEY_DIM];
    memset(host, 0, c->delta.layer_bytes);
    for (int h = 0; h < d->value_heads; h++)
        for (int v = 0; v < d->value_dim; v++) {
            tensor_to_floats(state, ((int64_t)h * d->value_dim + v) * d->key_dim, d->key_dim, row);
            for (int k = 0; k < d->key_dim; k++) to[(h * d->key_dim + k) * d->value_dim + v] = row[k];
        }
    tensor_to_floats(inputs, 0, tensor_elements(inputs), (float *)(host + c->delta.conv));
    c->options.backend->table->copy(c->options.backend, items_at(&c->states, in->s->slot) + (size_t)layer * c->delta.layer_bytes,
                                    host, c->delta.layer_bytes);
    return 0;
}

/* "1,2,3" into tokens when it is exactly as many as there are rows; 0 when it is not. */
static int read_tokens(struct sequence *s, const char *text) {
    for (int i = 0; i < s->rows; i++) {
        char *end;
        long v = strtol(text, &end, 10);
        if (end == text || v < 0 || v > INT32_MAX || *end != (i + 1 < s->rows ? ',' : 0)) return 0;
        s->keys[i] = s->tokens[i] = (int32_t)v, text = end + 1;
    }
    return 1;
}

static void set_rows(struct mlx_input *in, int *n_tokens) {
    struct sequence *s = in->s;
    const char *tokens = safetensors_metadata(in->file, "1.tokens"), *next = safetensors_metadata(in->file, "1.next_position");
    s->rows = in->rows;
    *n_tokens = tokens && read_tokens(s, tokens) ? s->rows : 0;
    for (int i = 0; i < s->rows; i++) {
        if (!*n_tokens) s->tokens[i] = -1, s->keys[i] = cache_unique_key(s->cache);
        for (int a = 0; a < 3; a++) s->positions[3 * i + a] = i;
    }
    char *end = NULL;
    long position = next ? strtol(next, &end, 10) : 0;
    s->next_position = next && end != next && !*end && position > 0 && position < INT32_MAX / 2 ? (int)position : s->rows;
}

static int load_layers(struct mlx_input *in, const struct mlx_layout *l) {
    struct cache *c = in->s->cache;
    int code = sequence_grow(in->s, in->rows, blocks_of(in->rows), in->e), attention = 0, delta = 0;
    if (code) return code;
    if (sequence_need_slot(in->s, SLOT_ANY) || !sequence_need_pages(in->s, in->rows, 0))
        return error_set(in->e, WEFT_ERROR_MEMORY, "%s: the cache's memory of %zu bytes has no room for its %d rows", in->path,
                         cache_memory_bytes(c), in->rows);
    in->block.bytes = mem_alloc(largest_block(c));
    uint8_t *host = mem_alloc(c->delta.layer_bytes);
    if (!in->block.bytes || !host) code = error_memory(in->e, in->path);
    for (int i = 0; i < l->n_layers && !code; i++) {
        int affine = find(in, "%d.1.0", i, 0, 0) != NULL;
        if (!l->is_attention[i]) code = load_delta(in, i, delta++, host);
        else {
            for (int side = 0; side < 2 && !code; side++)
                code = affine ? load_affine_side(in, i, attention, side) : load_plain_side(in, i, attention, side);
            attention++;
        }
    }
    mem_free(in->block.bytes), mem_free(host);
    return code;
}

int session_load_mlx(struct sequence **out, struct cache *c, const char *path, const struct mlx_layout *l, int *n_tokens,
                     struct weft_error *e) {
    struct mlx_input in = {.path = path, .e = e};
    *out = NULL, *n_tokens = 0;
    if (!check_layout(c, l)) return error_set(e, WEFT_ERROR_INPUT, "%s: the layers do not fit the cache", path);
    int code = safetensors_open(&in.file, path, e);
    if (code) return code;
    char beyond[NAME_BYTES];
    snprintf(beyond, sizeof beyond, "2.%d", l->n_layers);
    if (!safetensors_metadata(in.file, "2.0")) code = error_set(e, WEFT_ERROR_INPUT, "%s: not an MLX prompt cache", path);
    else if (safetensors_metadata(in.file, beyond))
        code = error_set(e, WEFT_ERROR_INPUT, "%s: more layers than the model's %d", path, l->n_layers);
    if (!code) code = count_rows(&in, l);
    if (!code && c->options.max_context_rows > 0 && in.rows > c->options.max_context_rows)
        code = error_set(e, WEFT_ERROR_INPUT, "%s: its %d rows are more than the context of %d", path, in.rows,
                         c->options.max_context_rows);
    if (!code) code = sequence_new(&in.s, c, e);
    if (!code) code = load_layers(&in, l);
    if (!code) set_rows(&in, n_tokens);
    safetensors_close(in.file);
    if (code) return sequence_free(in.s), code;
    *out = in.s;
    return 0;
}

#include "cache/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cache/checksum.h"
#include "cache/state.h"
#include "checkpoint/safetensors.h"

/* Metadata, and the order in which it enters the checksum. */
enum { M_VERSION, M_MODEL, M_MODEL_NAME, M_ARITHMETIC, M_SCHEME, M_SHAPE, M_ADAPTERS, M_ADAPTER_HASH, M_ROWS, M_MTP_ROWS,
       M_MTP_ALIGNED, N_METADATA };
static const char *const metadata_keys[N_METADATA] = {
    "weft.session", "model", "model_name", "arithmetic", "scheme", "shape", "adapters", "adapter_hash", "rows", "mtp_rows",
    "mtp_aligned",
};
static const char version[] = "1";

/* Tensors, in the order of the file. */
enum { T_TOKENS, T_KEYS, T_POSITIONS, T_LOW, T_HIGH, T_MTP, T_STATE, T_HIDDEN, T_CHECKSUM, N_TENSORS };
enum { STAGING_BYTES = 1 << 20 };

/* All that decides how bytes of pages and state are to be read, besides the scheme. */
static void shape_text(const struct cache *c, char *out, size_t n) {
    const struct cache_shape *s = &c->shape;
    snprintf(out, n, "attention %d mtp %d heads %d dim %d %s; delta %d heads %d/%d dims %d/%d taps %d; hidden %d",
             s->n_attention, s->n_mtp, s->n_kv_heads, s->head_dim, s->f32_rows ? "f32" : "bf16", s->n_delta, s->delta.key_heads,
             s->delta.value_heads, s->delta.key_dim, s->delta.value_dim, s->delta.conv_kernel, s->hidden);
}

/* What a file with so many rows holds; an absent tensor has no rows. */
static void describe(const struct cache *c, int rows, int mtp_rows, int has_hidden, struct tensor_spec out[N_TENSORS]) {
    int n[N_FORMS], first;
    for (int f = 0; f < N_FORMS; f++) cache_form_blocks(c, f, f == MTP ? mtp_rows : rows, &first, &n[f]);
    const struct tensor_spec specs[N_TENSORS] = {
        [T_TOKENS] = {"tokens", DTYPE_I32, 1, {rows}},
        [T_KEYS] = {"keys", DTYPE_I64, 1, {rows}},
        [T_POSITIONS] = {"positions", DTYPE_I32, 2, {rows, 3}},
        [T_LOW] = {"low", DTYPE_U8, 2, {n[LOW], (int64_t)c->pages[LOW].item_bytes}},
        [T_HIGH] = {"high", DTYPE_U8, 2, {n[HIGH], (int64_t)c->pages[HIGH].item_bytes}},
        [T_MTP] = {"mtp", DTYPE_U8, 2, {n[MTP], (int64_t)c->pages[MTP].item_bytes}},
        [T_STATE] = {"state", DTYPE_U8, 1, {(int64_t)cache_state_bytes(c)}},
        [T_HIDDEN] = {"hidden", DTYPE_F32, 1, {has_hidden ? c->shape.hidden : 0}},
        [T_CHECKSUM] = {"checksum", DTYPE_U64, 1, {1}},
    };
    memcpy(out, specs, sizeof specs);
}

struct output { struct safetensors_writer *w; struct checksum sum; uint8_t *staging; int code; struct weft_error *e; };

static void put(struct output *o, const void *bytes, size_t n) {
    if (o->code || n == 0) return;
    checksum_add(&o->sum, bytes, n);
    o->code = safetensors_write(o->w, bytes, n, o->e);
}

/* Rows that do not exist are cleared: they may hold what another sequence left there. */
static void clear_rows(const struct sequence *s, int form, int block, uint8_t *page) {
    const struct cache *c = s->cache;
    static const float zeros[KV_MAX_DIM];
    int dim = c->shape.head_dim, start = c->options.kv_start, first_mtp = c->shape.n_attention - c->shape.n_mtp;
    for (int layer = form == MTP ? first_mtp : 0; layer < (form == MTP ? c->shape.n_attention : first_mtp); layer++) {
        const struct kv_scheme *k = form == LOW ? &c->low_scheme : &c->schemes[layer];
        size_t k_bytes = kv_k_bytes(k, dim), head_bytes = k_bytes + kv_v_bytes(k, dim);
        uint8_t *at = page + c->layer_offset[form][layer];
        int count = form == MTP ? s->mtp_rows : s->rows;
        int begin = form == HIGH ? start : 0, end = form == LOW && start < count ? start : count;
        begin -= block * BLOCK_ROWS, end -= block * BLOCK_ROWS; /* the rows that exist, within the block */
        if (end <= 0 || begin >= end) memset(at, 0, head_bytes * (size_t)c->shape.n_kv_heads);
        else
            for (int r = 0; r < BLOCK_ROWS; r++)
                for (int h = 0; h < c->shape.n_kv_heads && (r < begin || r >= end); h++) {
                    uint8_t *head = at + head_bytes * (size_t)h;
                    k->k->k.write_row(head, kv_k_shape(k, dim), r, zeros);
                    k->v->v.write_row(head + k_bytes, kv_v_shape(k, dim), r, zeros);
                }
    }
}

static void put_pages(struct output *o, const struct sequence *s, int form) {
    struct cache *c = s->cache;
    struct backend *b = c->options.backend;
    int first, n;
    cache_form_blocks(c, form, form == MTP ? s->mtp_rows : s->rows, &first, &n);
    for (int i = first; i < first + n && !o->code; i++) {
        b->table->copy(b, o->staging, items_at(&c->pages[form], s->pages[form][i]), c->pages[form].item_bytes);
        clear_rows(s, form, i, o->staging);
        put(o, o->staging, c->pages[form].item_bytes);
    }
}

static void put_state(struct output *o, const struct sequence *s) {
    struct backend *b = s->cache->options.backend;
    size_t bytes = cache_state_bytes(s->cache);
    for (size_t at = 0, n; at < bytes && !o->code; at += n) {
        n = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        b->table->copy(b, o->staging, items_at(&s->cache->states, s->slot) + at, n);
        put(o, o->staging, n);
    }
}

static size_t staging_bytes(const struct cache *c) {
    size_t n = STAGING_BYTES;
    for (int f = 0; f < N_FORMS; f++)
        if (c->pages[f].item_bytes > n) n = c->pages[f].item_bytes;
    return n;
}

static int write_all(struct output *o, struct sequence *s, const char *path, const struct tensor_spec *specs,
                     const struct text_pair *m) {
    checksum_init(&o->sum);
    for (int i = 0; i < N_METADATA; i++) checksum_add_text(&o->sum, m[i].key), checksum_add_text(&o->sum, m[i].value);
    int code = safetensors_open_writer(&o->w, path, specs, N_TENSORS, m, N_METADATA, o->e);
    if (code) return code;
    put(o, s->tokens, (size_t)s->rows * sizeof *s->tokens);
    put(o, s->keys, (size_t)s->rows * sizeof *s->keys);
    put(o, s->positions, (size_t)s->rows * 3 * sizeof *s->positions);
    for (int f = 0; f < N_FORMS; f++) put_pages(o, s, f);
    put_state(o, s);
    if (s->has_hidden) put(o, s->hidden, (size_t)s->cache->shape.hidden * sizeof *s->hidden);
    uint64_t sum = checksum_get(&o->sum);
    put(o, &sum, sizeof sum);
    if (!o->code) return safetensors_close_writer(o->w, 1, o->e);
    safetensors_close_writer(o->w, 0, NULL);
    return o->code;
}

/* Fills values from id and cache; those that are texts of their own are borrowed. */
struct identity_text { char model[24], shape[256], adapter_hash[24]; };
static void identity_values(const struct cache *c, const struct session_identity *id, uint64_t adapters, struct identity_text *t,
                            const char *values[N_METADATA]) {
    snprintf(t->model, sizeof t->model, "%016" PRIx64, id->model);
    snprintf(t->adapter_hash, sizeof t->adapter_hash, "%016" PRIx64, adapters);
    shape_text(c, t->shape, sizeof t->shape);
    values[M_VERSION] = version, values[M_MODEL] = t->model, values[M_MODEL_NAME] = id->model_name ? id->model_name : "";
    values[M_ARITHMETIC] = id->arithmetic ? id->arithmetic : "", values[M_SCHEME] = c->scheme_text, values[M_SHAPE] = t->shape;
    values[M_ADAPTERS] = id->adapters ? id->adapters : "", values[M_ADAPTER_HASH] = t->adapter_hash;
}

int session_save(struct sequence *s, const char *path, const struct session_identity *id, struct weft_error *e) {
    struct cache *c = s->cache;
    CHECK(!s->busy);
    if (s->rows == 0 || s->lost) return error_set(e, WEFT_ERROR_INPUT, "%s: the sequence has nothing to save", path);
    sequence_fold(s);
    struct tensor_spec specs[N_TENSORS];
    describe(c, s->rows, s->mtp_rows, s->has_hidden, specs);
    struct identity_text texts;
    const char *values[N_METADATA];
    char rows[16], mtp_rows[16], mtp_aligned[16];
    identity_values(c, id, s->adapters, &texts, values);
    snprintf(rows, sizeof rows, "%d", s->rows), snprintf(mtp_rows, sizeof mtp_rows, "%d", s->mtp_rows);
    snprintf(mtp_aligned, sizeof mtp_aligned, "%d", s->mtp_aligned);
    values[M_ROWS] = rows, values[M_MTP_ROWS] = mtp_rows, values[M_MTP_ALIGNED] = mtp_aligned;
    struct text_pair m[N_METADATA];
    for (int i = 0; i < N_METADATA; i++) m[i] = (struct text_pair){metadata_keys[i], values[i]};
    struct output o = {.staging = mem_alloc(staging_bytes(c)), .e = e};
    int code = o.staging ? write_all(&o, s, path, specs, m) : error_memory(e, path);
    mem_free(o.staging);
    return code;
}

struct input {
    struct file_map map;
    struct safetensors *file;
    const char *path, *values[N_METADATA];
    const struct tensor *tensors[N_TENSORS];
    int rows, mtp_rows, mtp_aligned;
    struct weft_error *e;
};

static int read_count(const struct input *in, int which, int most, int *out) {
    char *end;
    const char *text = in->values[which];
    long v = strtol(text, &end, 10);
    if (end == text || *end || v < 0 || v > most)
        return error_set(in->e, WEFT_ERROR_INPUT, "%s: damaged: %s is \"%.32s\"", in->path, metadata_keys[which], text);
    *out = (int)v;
    return 0;
}

/* Is the file one of this model, arithmetic, scheme and adapters? */
static int check_identity(struct input *in, const struct cache *c, const struct session_identity *id, uint64_t adapters) {
    in->values[M_VERSION] = safetensors_metadata(in->file, metadata_keys[M_VERSION]);
    if (!in->values[M_VERSION]) return error_set(in->e, WEFT_ERROR_INPUT, "%s: not a weft session", in->path);
    if (strcmp(in->values[M_VERSION], version) != 0)
        return error_set(in->e, WEFT_ERROR_SUPPORT, "%s: a session of version \"%.16s\", this program knows %s", in->path,
                         in->values[M_VERSION], version);
    for (int i = 0; i < N_METADATA; i++)
        if (!(in->values[i] = safetensors_metadata(in->file, metadata_keys[i])))
            return error_set(in->e, WEFT_ERROR_INPUT, "%s: damaged: no \"%s\"", in->path, metadata_keys[i]);
    struct identity_text texts;
    const char *mine[N_METADATA];
    identity_values(c, id, adapters, &texts, mine);
    const char *const *v = in->values;
    if (strcmp(v[M_MODEL], mine[M_MODEL]) != 0 || strcmp(v[M_SHAPE], mine[M_SHAPE]) != 0)
        return error_set(in->e, WEFT_ERROR_INPUT, "%s: a session of another model%s%.128s", in->path,
                         v[M_MODEL_NAME][0] ? ": " : "", v[M_MODEL_NAME]);
    if (strcmp(v[M_SCHEME], mine[M_SCHEME]) != 0)
        return error_set(in->e, WEFT_ERROR_INPUT,
                         "%s: its attention rows are kept as \"%.128s\", those of this run as \"%.128s\"", in->path, v[M_SCHEME],
                         mine[M_SCHEME]);
    if (strcmp(v[M_ARITHMETIC], mine[M_ARITHMETIC]) != 0)
        return error_set(in->e, WEFT_ERROR_INPUT, "%s: computed with \"%.128s\", this run computes with \"%.128s\"", in->path,
                         v[M_ARITHMETIC], mine[M_ARITHMETIC]);
    if (strcmp(v[M_ADAPTER_HASH], mine[M_ADAPTER_HASH]) != 0)
        return error_set(in->e, WEFT_ERROR_INPUT, "%s: its adapters are \"%.128s\", those of this run \"%.128s\"", in->path,
                         v[M_ADAPTERS], mine[M_ADAPTERS]);
    return 0;
}

static int check_tensors(struct input *in, const struct cache *c) {
    int most = c->options.max_context_rows > 0 ? c->options.max_context_rows : INT32_MAX / 4;
    int code = read_count(in, M_ROWS, INT32_MAX / 4, &in->rows);
    if (!code) code = read_count(in, M_MTP_ROWS, INT32_MAX / 4, &in->mtp_rows);
    if (!code) code = read_count(in, M_MTP_ALIGNED, in->mtp_rows < in->rows ? in->mtp_rows : in->rows, &in->mtp_aligned);
    if (code) return code;
    if (in->rows > most || in->mtp_rows > most)
        return error_set(in->e, WEFT_ERROR_INPUT, "%s: its %d rows are more than the context of %d", in->path, in->rows, most);
    const struct tensor *hidden = safetensors_find(in->file, "hidden");
    struct tensor_spec specs[N_TENSORS];
    describe(c, in->rows, in->mtp_rows, hidden && hidden->n_bytes > 0, specs);
    for (int i = 0; i < N_TENSORS; i++) {
        const struct tensor *t = in->tensors[i] = safetensors_find(in->file, specs[i].name);
        if (!t || t->dtype != specs[i].dtype || !tensor_is_shape(t, specs[i].n_dims, specs[i].shape))
            return error_set(in->e, WEFT_ERROR_INPUT, "%s: damaged: \"%s\" is not what it should be", in->path, specs[i].name);
    }
    const struct tensor *last = in->tensors[T_CHECKSUM];
    if (safetensors_count(in->file) != N_TENSORS || last->data + last->n_bytes != in->map.data + in->map.n_bytes)
        return error_set(in->e, WEFT_ERROR_INPUT, "%s: damaged: it holds more than a session", in->path);
    struct checksum sum;
    checksum_init(&sum);
    for (int i = 0; i < N_METADATA; i++) checksum_add_text(&sum, metadata_keys[i]), checksum_add_text(&sum, in->values[i]);
    for (int i = 0; i < T_CHECKSUM; i++) checksum_add(&sum, in->tensors[i]->data, in->tensors[i]->n_bytes);
    uint64_t stored, found = checksum_get(&sum);
    memcpy(&stored, last->data, sizeof stored);
    return stored == found ? 0 : error_set(in->e, WEFT_ERROR_INPUT, "%s: damaged: its checksum is wrong", in->path);
}

static int fill(struct sequence *s, const struct input *in) {
    struct cache *c = s->cache;
    struct backend *b = c->options.backend;
    int total = in->rows > in->mtp_rows ? in->rows : in->mtp_rows;
    int code = sequence_grow(s, in->rows, blocks_of(total), in->e);
    if (code) return code;
    if (sequence_need_slot(s, SLOT_ANY) || !sequence_need_pages(s, in->rows, in->mtp_rows))
        return error_set(in->e, WEFT_ERROR_MEMORY, "%s: the cache's memory of %zu bytes has no room for its %d rows", in->path,
                         cache_memory_bytes(c), in->rows);
    for (int f = 0, first, n; f < N_FORMS; f++) {
        cache_form_blocks(c, f, f == MTP ? in->mtp_rows : in->rows, &first, &n);
        size_t bytes = c->pages[f].item_bytes;
        const uint8_t *from = in->tensors[T_LOW + f]->data;
        for (int i = 0; i < n; i++)
            b->table->copy(b, items_at(&c->pages[f], s->pages[f][first + i]), from + (size_t)i * bytes, bytes);
    }
    if (cache_state_bytes(c)) b->table->copy(b, items_at(&c->states, s->slot), in->tensors[T_STATE]->data, cache_state_bytes(c));
    memcpy(s->tokens, in->tensors[T_TOKENS]->data, in->tensors[T_TOKENS]->n_bytes);
    memcpy(s->keys, in->tensors[T_KEYS]->data, in->tensors[T_KEYS]->n_bytes);
    memcpy(s->positions, in->tensors[T_POSITIONS]->data, in->tensors[T_POSITIONS]->n_bytes);
    for (int i = 0; i < 3 * in->rows; i++) {
        int p = s->positions[i];
        if (p < 0 || p > INT32_MAX / 2) return error_set(in->e, WEFT_ERROR_INPUT, "%s: damaged: position %d", in->path, p);
        if (p >= s->next_position) s->next_position = p + 1;
    }
    if (in->tensors[T_HIDDEN]->n_bytes) {
        memcpy(s->hidden, in->tensors[T_HIDDEN]->data, in->tensors[T_HIDDEN]->n_bytes);
        s->has_hidden = 1;
    }
    s->rows = in->rows, s->mtp_rows = in->mtp_rows, s->mtp_aligned = in->mtp_aligned;
    return 0;
}

int session_load(struct sequence **out, struct cache *c, const char *path, const struct session_identity *id, uint64_t adapters,
                 struct weft_error *e) {
    struct input in = {.path = path, .e = e};
    *out = NULL;
    int code = file_open_map(&in.map, path, e);
    if (!code) code = safetensors_open_bytes(&in.file, in.map.data, in.map.n_bytes, path, e);
    if (!code) code = check_identity(&in, c, id, adapters);
    if (!code) code = check_tensors(&in, c);
    struct sequence *s = NULL;
    if (!code) code = sequence_new(&s, c, e);
    if (!code) code = fill(s, &in);
    safetensors_close(in.file);
    file_close_map(&in.map);
    if (code) return sequence_free(s), code;
    s->adapters = adapters;
    *out = s;
    return 0;
}

int session_is_mlx(const char *path) {
    size_t n = strlen(path), m = strlen(".safetensors");
    return n > m && strcmp(path + n - m, ".safetensors") == 0;
}

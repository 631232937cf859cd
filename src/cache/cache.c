#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "cache/state.h"

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

/* Large items begin on a page of the system, so that freeing one gives all of it back. */
static size_t item_size(size_t bytes) { return round_up(bytes, bytes >= 65536 ? 4096 : 64); }

static struct log_layout layout_log(const struct delta_shape *d, int n_rows) {
    struct log_layout l;
    size_t n = (size_t)n_rows * sizeof(float);
    l.k = round_up(n * (size_t)d->value_heads, 64);
    l.u = l.k + round_up(n * (size_t)delta_keys(d), 64);
    l.conv = l.u + round_up(n * (size_t)delta_values(d), 64);
    l.layer_bytes = l.conv + round_up(n * (size_t)delta_channels(d), 64);
    return l;
}

static void layout_delta(struct delta_layout *l, const struct cache_shape *s, int max_undo_rows) {
    const struct delta_shape *d = &s->delta;
    *l = (struct delta_layout){0};
    if (s->n_delta == 0) return;
    l->conv = round_up((size_t)delta_values(d) * (size_t)d->key_dim * sizeof(float), 64);
    l->layer_bytes = l->conv + round_up((size_t)(d->conv_kernel > 1 ? d->conv_kernel - 1 : 0) * (size_t)delta_channels(d) * sizeof(float), 64);
    l->undo = layout_log(d, max_undo_rows), l->wait = layout_log(d, WAIT_ROWS);
}

static struct kv_scheme plain_scheme(const struct cache_shape *s) {
    const struct kv_format *f = s->f32_rows ? &kv_f32 : &kv_bf16;
    return (struct kv_scheme){f, f, 0, 0, 0};
}

static size_t layer_page_bytes(const struct cache_shape *s, const struct kv_scheme *scheme) {
    return (size_t)s->n_kv_heads * (kv_k_bytes(scheme, s->head_dim) + kv_v_bytes(scheme, s->head_dim));
}

void cache_sizes(const struct cache_shape *shape, const struct cache_options *o, struct cache_bytes *out) {
    struct delta_layout l;
    layout_delta(&l, shape, o->max_undo_rows);
    *out = (struct cache_bytes){0};
    struct kv_scheme plain = plain_scheme(shape);
    for (int i = 0; i < shape->n_attention; i++) {
        size_t bytes = layer_page_bytes(shape, o->schemes ? &o->schemes[i] : &plain);
        if (i >= shape->n_attention - shape->n_mtp) out->mtp_page += bytes;
        else out->page += bytes, out->low_page += layer_page_bytes(shape, &plain);
    }
    out->page = item_size(out->page), out->low_page = item_size(out->low_page), out->mtp_page = item_size(out->mtp_page);
    size_t layers = (size_t)shape->n_delta;
    out->state = item_size(layers * (l.layer_bytes + l.wait.layer_bytes));
    out->log = item_size(2 * layers * l.undo.layer_bytes);
    out->snapshot = item_size(layers * l.layer_bytes) + (size_t)shape->hidden * sizeof(float);
    out->fixed = sizeof(struct cache);
}

/* "bf16", or per run of equal layers "N x 8/64", and where the schemes begin. */
static char *scheme_text(const struct cache *c) {
    struct buf b;
    buf_init(&b);
    for (int i = 0, n; i < c->shape.n_attention; i += n) {
        char name[64], next[64];
        kv_scheme_name(&c->schemes[i], name, sizeof name);
        for (n = 1; i + n < c->shape.n_attention; n++) {
            kv_scheme_name(&c->schemes[i + n], next, sizeof next);
            if (strcmp(name, next) != 0) break;
        }
        buf_printf(&b, "%s%d x %s", i ? ", " : "", n, name);
    }
    if (c->options.kv_start > 0) buf_printf(&b, " from row %d", c->options.kv_start);
    buf_add_text(&b, "");
    return buf_take(&b, NULL);
}

static int set_schemes(struct cache *c, const struct cache_options *o, struct weft_error *e) {
    int n = c->shape.n_attention;
    c->low_scheme = plain_scheme(&c->shape);
    c->schemes = mem_new((size_t)n, sizeof *c->schemes);
    for (int f = 0; f < N_FORMS; f++) c->layer_offset[f] = mem_new((size_t)n, sizeof(size_t));
    if (!c->schemes || !c->layer_offset[LOW] || !c->layer_offset[HIGH] || !c->layer_offset[MTP]) return error_memory(e, "the cache");
    size_t at[N_FORMS] = {0};
    for (int i = 0; i < n; i++) {
        c->schemes[i] = o->schemes ? o->schemes[i] : c->low_scheme;
        int code = kv_scheme_check(&c->schemes[i], c->shape.head_dim, e);
        if (code) return code;
        int form = layer_form(c, i);
        c->layer_offset[LOW][i] = at[LOW], c->layer_offset[form][i] = at[form];
        at[LOW] += layer_page_bytes(&c->shape, &c->low_scheme);
        at[form] += layer_page_bytes(&c->shape, &c->schemes[i]);
    }
    c->options.schemes = c->schemes;
    if (!o->schemes) c->options.kv_start = 0;
    c->scheme_text = scheme_text(c);
    return c->scheme_text ? 0 : error_memory(e, "the cache");
}

static int open_pools(struct cache *c, struct weft_error *e) {
    struct cache_bytes size;
    cache_sizes(&c->shape, &c->options, &size);
    size_t all = c->options.memory_bytes, for_snapshots = c->options.snapshot_bytes < all ? c->options.snapshot_bytes : all;
    /* Of the low form no more is ever needed than kv_start rows of as many sequences as fit. */
    int code = size.page ? items_open(&c->pages[HIGH], c, size.page, all, e) : 0;
    if (!code && size.low_page && c->options.kv_start > 0) code = items_open(&c->pages[LOW], c, size.low_page, all, e);
    if (!code && size.mtp_page) code = items_open(&c->pages[MTP], c, size.mtp_page, all, e);
    if (!code) code = items_open(&c->states, c, size.state, all, e);
    if (!code && size.log) code = items_open(&c->logs, c, size.log, all, e);
    size_t fit = for_snapshots / (size.snapshot ? size.snapshot : 1);
    size_t snapshot = item_size(cache_state_bytes(c));
    if (!code) code = items_open(&c->snapshots, c, snapshot, snapshot ? fit * snapshot : 0, e);
    if (code) return code;
    size_t n = (size_t)c->snapshots.capacity;
    c->snapshot_of = mem_map_pages(n * sizeof *c->snapshot_of);
    c->hidden_of = mem_map_pages(n * (size_t)c->shape.hidden * sizeof(float));
    return c->snapshot_of && c->hidden_of ? 0 : error_memory(e, "the cache's regions");
}

int cache_new(struct cache **out, const struct cache_shape *shape, const struct cache_options *o, struct weft_error *e) {
    CHECK(shape->n_attention >= shape->n_mtp && shape->n_delta >= 0 && o->max_undo_rows >= 0 && o->kv_start >= 0);
    *out = NULL;
    struct cache *c = mem_new(1, sizeof *c);
    if (!c) return error_memory(e, "the cache");
    c->shape = *shape, c->options = *o;
    layout_delta(&c->delta, shape, o->max_undo_rows);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    c->seed = hash_mix(hash_mix((uint64_t)now.tv_sec, (uint64_t)now.tv_nsec), (uintptr_t)c);
    int code = set_schemes(c, o, e);
    if (!code) code = open_pools(c, e);
    if (code) {
        cache_free(c);
        return code;
    }
    *out = c;
    return 0;
}

void cache_free(struct cache *c) {
    if (!c) return;
    CHECK(c->n_sequences == 0 && !c->step.open);
    size_t n = (size_t)c->snapshots.capacity;
    if (c->snapshot_of) mem_free_pages(c->snapshot_of, n * sizeof *c->snapshot_of);
    if (c->hidden_of) mem_free_pages(c->hidden_of, n * (size_t)c->shape.hidden * sizeof(float));
    for (int f = 0; f < N_FORMS; f++) items_close(&c->pages[f]), mem_free(c->layer_offset[f]);
    items_close(&c->states), items_close(&c->logs), items_close(&c->snapshots);
    mem_free(c->schemes), mem_free(c->scheme_text);
    mem_free(c->step.positions), mem_free(c->step.changes), mem_free(c->step.groups);
    mem_free(c->step.snapshots), mem_free(c->step.layers);
    mem_free(c);
}

void cache_warm_undo(struct cache *c) {
    struct backend *b = c->options.backend;
    size_t half = c->logs.item_bytes / 2;
    int item = items_take(&c->logs);
    if (item == NO_PAGE) return;
    uint8_t *at = items_at(&c->logs, item);
    b->table->copy(b, at, at + half, half), b->table->copy(b, at + half, at, half);
    items_drop(&c->logs, item);
}

size_t cache_used_bytes(const struct cache *c) { return c->used_bytes; }
size_t cache_peak_bytes(const struct cache *c) { return c->peak_bytes; }
size_t cache_memory_bytes(const struct cache *c) { return c->options.memory_bytes - atomic_load(&c->aside_bytes); }
const char *cache_scheme_text(const struct cache *c) { return c->scheme_text; }
size_t cache_state_bytes(const struct cache *c) { return (size_t)c->shape.n_delta * c->delta.layer_bytes; }

size_t cache_request_bytes(const struct cache *c, int n_rows, int undo) {
    size_t bytes = c->states.item_bytes + (undo ? c->logs.item_bytes : 0);
    for (int f = 0, first, n; f < N_FORMS; f++) {
        cache_form_blocks(c, f, f != MTP || undo ? n_rows : 0, &first, &n);
        bytes += (size_t)n * c->pages[f].item_bytes;
    }
    return bytes;
}

static struct kv_store store_of(const struct cache *c, int form, const struct kv_scheme *s, int layer) {
    size_t k = kv_k_bytes(s, c->shape.head_dim), v = kv_v_bytes(s, c->shape.head_dim);
    return (struct kv_store){
        .k = s->k, .v = s->v, .k_bits = s->k_bits, .v_bits = s->v_bits, .group = s->group,
        .base = c->pages[form].base ? c->pages[form].base + c->layer_offset[form][layer] : NULL,
        .page_stride = (int64_t)c->pages[form].item_bytes, .head_stride = (int64_t)(k + v), .k_bytes = (int64_t)k,
    };
}

void cache_kv_layer(const struct cache *c, int layer, struct kv_layer *out) {
    CHECK(layer >= 0 && layer < c->shape.n_attention);
    out->low = store_of(c, LOW, &c->low_scheme, layer);
    out->high = store_of(c, layer_form(c, layer), &c->schemes[layer], layer);
    out->kv_start = layer_form(c, layer) == MTP ? 0 : c->options.kv_start;
}

int64_t cache_unique_key(struct cache *c) { return (int64_t)(hash_mix(c->seed, c->n_unique++) | 1ull << 63); }

int64_t row_key(const struct row_source *r, int i, int32_t position[3], int *next, int64_t unique) {
    int text = *next;
    for (int a = 0; a < 3; a++) {
        if (!r->positions) position[a] = text;
        else position[a] = r->positions[(r->n_axes == 1 ? 0 : a) * r->n_rows + i];
        if (position[a] >= *next) *next = position[a] + 1;
    }
    int64_t key = r->tokens[i];
    if (key < 0) key = r->keys ? (int64_t)((uint64_t)r->keys[i] | 1ull << 63) : unique;
    if (position[0] == text && position[1] == text && position[2] == text) return key;
    uint64_t h = (uint64_t)key;
    for (int a = 0; a < 3; a++) h = hash_mix(h, (uint64_t)(int64_t)(position[a] - text));
    return (int64_t)(h | 1ull << 63);
}

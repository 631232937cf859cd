#include <string.h>

#include "cache/state.h"

int sequence_new(struct sequence **out, struct cache *c, struct weft_error *e) {
    *out = NULL;
    struct sequence *s = mem_new(1, sizeof *s);
    float *hidden = mem_new((size_t)c->shape.hidden, sizeof *hidden);
    if (!s || !hidden) {
        mem_free(s), mem_free(hidden);
        return error_memory(e, "a sequence");
    }
    s->cache = c, s->hidden = hidden, s->slot = s->log_slot = NO_PAGE;
    c->n_sequences++;
    *out = s;
    return 0;
}

void sequence_drop_blocks(struct sequence *s, int form, int n_blocks) {
    for (; s->n_blocks[form] > n_blocks; s->n_blocks[form]--) {
        int32_t *page = &s->pages[form][s->n_blocks[form] - 1];
        if (*page != NO_PAGE) items_drop(&s->cache->pages[form], *page);
        *page = NO_PAGE;
    }
}

void sequence_trim(struct sequence *s) {
    for (int f = 0; f < N_FORMS; f++) sequence_drop_blocks(s, f, blocks_of(f == MTP ? s->mtp_rows : s->rows));
}

void sequence_free(struct sequence *s) {
    if (!s) return;
    CHECK(!s->busy);
    for (int f = 0; f < N_FORMS; f++) sequence_drop_blocks(s, f, 0);
    if (s->slot != NO_PAGE) items_drop(&s->cache->states, s->slot);
    if (s->log_slot != NO_PAGE) items_drop(&s->cache->logs, s->log_slot);
    s->cache->n_sequences--;
    mem_free(s->tokens), mem_free(s->keys), mem_free(s->positions), mem_free(s->hidden);
    for (int f = 0; f < N_FORMS; f++) mem_free(s->pages[f]);
    mem_free(s);
}

static int grow_array(void *array, int n, size_t size) {
    void **p = array, *bigger = mem_resize(*p, (size_t)n * size);
    if (!bigger) return 0;
    *p = bigger;
    return 1;
}

int sequence_grow(struct sequence *s, int n_rows, int n_blocks, struct weft_error *e) {
    if (n_rows > s->room) {
        int room = s->room + s->room / 2 > n_rows ? s->room + s->room / 2 : n_rows;
        if (!grow_array(&s->tokens, room, sizeof *s->tokens) || !grow_array(&s->keys, room, sizeof *s->keys) ||
            !grow_array(&s->positions, room, 3 * sizeof *s->positions)) return error_memory(e, "a sequence's rows");
        s->room = room;
    }
    if (n_blocks > s->block_room) {
        int room = s->block_room + s->block_room / 2 > n_blocks ? s->block_room + s->block_room / 2 : n_blocks;
        for (int f = 0; f < N_FORMS; f++) {
            if (!grow_array(&s->pages[f], room, sizeof *s->pages[f])) return error_memory(e, "a sequence's pages");
            for (int i = s->block_room; i < room; i++) s->pages[f][i] = NO_PAGE;
        }
        s->block_room = room;
    }
    return 0;
}

int sequence_reserve(struct sequence *s, int n_rows, struct weft_error *e) {
    return sequence_grow(s, n_rows, blocks_of(n_rows), e);
}

int sequence_need_slot(struct sequence *s, enum slot_contents contents) {
    struct item_pool *p = &s->cache->states;
    if (s->slot != NO_PAGE) return 0;
    s->slot = items_take(p);
    if (s->slot == NO_PAGE) return 1;
    struct backend *b = s->cache->options.backend;
    if (contents == SLOT_ZERO && p->item_bytes) b->table->memory_release(b, items_at(p, s->slot), p->item_bytes);
    return 0;
}

void cache_form_blocks(const struct cache *c, int form, int n_rows, int *first, int *n) {
    int start = c->options.kv_start;
    *first = form == HIGH ? start / BLOCK_ROWS : 0;
    if (c->pages[form].item_bytes == 0) *n = 0;
    else if (form == MTP) *n = blocks_of(n_rows);
    else if (form == LOW) *n = blocks_of(n_rows < start ? n_rows : start);
    else *n = n_rows > start ? blocks_of(n_rows) - *first : 0;
}

int sequence_need_pages(struct sequence *s, int n_rows, int n_mtp_rows) {
    for (int f = 0, first, n; f < N_FORMS; f++) {
        cache_form_blocks(s->cache, f, f == MTP ? n_mtp_rows : n_rows, &first, &n);
        for (int b = first; b < first + n; b++) {
            CHECK(s->pages[f][b] == NO_PAGE);
            if ((s->pages[f][b] = items_take(&s->cache->pages[f])) == NO_PAGE) return 0;
            if (s->n_blocks[f] <= b) s->n_blocks[f] = b + 1;
        }
    }
    return 1;
}

void sequence_set_adapters(struct sequence *s, uint64_t hash) {
    CHECK(s->rows == 0 && !s->busy);
    s->adapters = hash;
}
uint64_t sequence_adapters(const struct sequence *s) { return s->adapters; }
int sequence_rows(const struct sequence *s) { return s->rows; }
int sequence_mtp_rows(const struct sequence *s) { return s->mtp_rows; }
int sequence_mtp_aligned(const struct sequence *s) { return s->mtp_aligned; }
int sequence_next_position(const struct sequence *s) { return s->next_position; }
const int32_t *sequence_tokens(const struct sequence *s) { return s->tokens; }
const int32_t *sequence_positions(const struct sequence *s) { return s->positions; }
const float *sequence_hidden(const struct sequence *s) { return s->has_hidden ? s->hidden : NULL; }

void sequence_cut_mtp(struct sequence *s, int n) {
    CHECK(!s->busy && n >= 0 && n <= s->mtp_rows);
    s->mtp_rows = n;
    if (s->mtp_aligned > n) s->mtp_aligned = n;
    sequence_trim(s);
}

void sequence_set_hidden(struct sequence *s, const float *hidden) {
    if (hidden) memcpy(s->hidden, hidden, (size_t)s->cache->shape.hidden * sizeof *hidden);
    s->has_hidden = hidden != NULL;
}

static struct delta_log log_at(uint8_t *at, const struct log_layout *l) {
    return (struct delta_log){(float *)at, (float *)(at + l->k), (float *)(at + l->u), (float *)(at + l->conv)};
}

static struct delta_log log_half(const struct sequence *s, int half, int layer) {
    const struct cache *c = s->cache;
    const struct log_layout *l = &c->delta.undo;
    return log_at(items_at(&c->logs, s->log_slot) + (size_t)(half * c->shape.n_delta + layer) * l->layer_bytes, l);
}

struct delta_log sequence_undo_log(const struct sequence *s, int layer) { return log_half(s, !s->log_half, layer); }

static struct delta_log waiting_rows(const struct sequence *s, int layer) {
    const struct cache *c = s->cache;
    const struct log_layout *l = &c->delta.wait;
    return log_at(items_at(&c->states, s->slot) + cache_state_bytes(c) + (size_t)layer * l->layer_bytes, l);
}

struct delta_log sequence_wait_log(const struct sequence *s, int layer) {
    const struct delta_shape *d = &s->cache->shape.delta;
    struct delta_log log = waiting_rows(s, layer);
    int64_t n = s->n_pending;
    log.decay += n * d->value_heads, log.k += n * delta_keys(d), log.u += n * delta_values(d), log.conv_in += n * delta_channels(d);
    return log;
}

struct delta_log sequence_pending(const struct sequence *s, int layer) {
    return s->waiting ? waiting_rows(s, layer) : log_half(s, s->log_half, layer);
}

/* The same op that a step runs, with no rows: so the bits are a step's. */
void sequence_fold(struct sequence *s) {
    struct cache *c = s->cache;
    CHECK(!s->busy);
    if (s->n_pending == 0) return;
    for (int layer = 0; layer < c->shape.n_delta; layer++) {
        uint8_t *at = items_at(&c->states, s->slot) + (size_t)layer * c->delta.layer_bytes;
        struct delta_group g = {.state = (float *)at, .conv = (float *)(at + c->delta.conv),
                                .pending = sequence_pending(s, layer), .n_pending = s->n_pending};
        struct op op = {.kind = OP_DELTA, .wait = 1, .delta = {.shape = c->shape.delta, .groups = &g, .n_groups = 1}};
        c->options.backend->table->run(c->options.backend, &op, 1);
    }
    s->n_pending = 0;
}

/* Pages and slots of `to`, whose host arrays have room already. 0 when the budget has none. */
static int share_device_memory(struct sequence *to, const struct sequence *from) {
    struct cache *c = to->cache;
    struct backend *b = c->options.backend;
    if (from->slot != NO_PAGE) {
        if (sequence_need_slot(to, SLOT_ANY)) return 0;
        b->table->copy(b, items_at(&c->states, to->slot), items_at(&c->states, from->slot),
                       from->waiting ? c->states.item_bytes : cache_state_bytes(c));
    }
    to->n_pending = from->n_pending, to->waiting = from->waiting;
    if (from->n_pending > 0 && !from->waiting) {
        to->log_slot = items_take(&c->logs);
        if (to->log_slot == NO_PAGE) return 0;
        size_t half = (size_t)c->shape.n_delta * c->delta.undo.layer_bytes;
        b->table->copy(b, items_at(&c->logs, to->log_slot), items_at(&c->logs, from->log_slot) + (size_t)from->log_half * half,
                       half);
    }
    for (int f = 0; f < N_FORMS; f++) {
        for (int i = 0; i < from->n_blocks[f]; i++) {
            to->pages[f][i] = from->pages[f][i];
            if (to->pages[f][i] != NO_PAGE) items_share(&c->pages[f], to->pages[f][i]);
        }
        to->n_blocks[f] = from->n_blocks[f];
    }
    return 1;
}

int sequence_fork(struct sequence **out, const struct sequence *from, struct weft_error *e) {
    CHECK(!from->busy);
    *out = NULL;
    struct sequence *s;
    int code = sequence_new(&s, from->cache, e);
    if (code) return code;
    code = sequence_grow(s, from->rows, blocks_of(from->rows > from->mtp_rows ? from->rows : from->mtp_rows), e);
    if (!code && !share_device_memory(s, from))
        code = error_set(e, WEFT_ERROR_MEMORY, "the cache's memory has no room for a copy of a sequence");
    if (code) {
        sequence_free(s);
        return code;
    }
    size_t n = (size_t)from->rows;
    if (n) {
        memcpy(s->tokens, from->tokens, n * sizeof *s->tokens);
        memcpy(s->keys, from->keys, n * sizeof *s->keys);
        memcpy(s->positions, from->positions, n * 3 * sizeof *s->positions);
    }
    s->rows = from->rows, s->next_position = from->next_position, s->adapters = from->adapters, s->lost = from->lost;
    s->mtp_rows = from->mtp_rows, s->mtp_aligned = from->mtp_aligned;
    if (from->has_hidden) sequence_set_hidden(s, from->hidden);
    *out = s;
    return 0;
}

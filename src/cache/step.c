/* Transactions. begin takes pages, slots and snapshots one after the other and writes down each change, so that a failure, or
 * abort, takes them back in reverse order. */
#include <string.h>

#include "cache/state.h"

static int grow(void *array, int *room, int n, size_t size, int least) {
    if (n <= *room) return 1;
    int more = *room + *room / 2;
    if (more < n) more = n;
    if (more < least) more = least;
    void **p = array, *bigger = mem_resize(*p, (size_t)more * size);
    if (!bigger) return 0;
    *p = bigger, *room = more;
    return 1;
}

static int first_row(const struct batch *b, const struct group *g) { return b->mtp ? g->seq->mtp_rows : g->seq->rows; }

/* Two arrays of one capacity. */
static int grow_snapshots(struct step *t, int n, int n_delta) {
    int room = t->snapshot_room, room2 = room;
    if (!grow(&t->snapshots, &room, n, sizeof *t->snapshots, 64)) return 0;
    if (!grow(&t->layers, &room2, n, (size_t)(n_delta > 0 ? n_delta : 1) * sizeof *t->layers, 64)) return 0;
    t->snapshot_room = room;
    return 1;
}

/* Host memory for everything that may follow, so that nothing behind this fails for it. */
static int make_room(struct cache *c, const struct batch *b, struct weft_error *e) {
    struct step *t = &c->step;
    int n_rows = 0, n_changes = 0, n_snapshots = 0;
    for (int i = 0; i < b->n_groups; i++) {
        const struct group *g = &b->groups[i];
        struct sequence *s = g->seq;
        CHECK(s && s->cache == c && !s->busy && g->n_rows > 0 && g->tokens);
        CHECK(!g->positions || g->n_axes == 1 || g->n_axes == 3);
        CHECK(!b->mtp || (g->n_snapshots == 0 && c->shape.n_mtp > 0));
        int end = first_row(b, g) + g->n_rows;
        if (s->lost) return error_set(e, WEFT_ERROR_INPUT, "a sequence whose step was dropped cannot go on");
        if (g->undo && !b->mtp && g->n_rows > c->options.max_undo_rows)
            return error_set(e, WEFT_ERROR_INPUT, "%d rows to undo, at most %d", g->n_rows, c->options.max_undo_rows);
        if (c->options.max_context_rows > 0 && end > c->options.max_context_rows)
            return error_set(e, WEFT_ERROR_INPUT, "%d rows are more than the context of %d", end, c->options.max_context_rows);
        int code = sequence_grow(s, b->mtp ? 0 : end, blocks_of(end), e);
        if (code) return code;
        n_rows += g->n_rows, n_snapshots += g->n_snapshots;
        n_changes += 2 * (g->n_rows / BLOCK_ROWS + 2);
    }
    if (!grow(&t->positions, &t->row_room, n_rows, 3 * sizeof *t->positions, 1024) ||
        !grow(&t->changes, &t->change_room, n_changes, sizeof *t->changes, 256) ||
        !grow(&t->groups, &t->group_room, b->n_groups, sizeof *t->groups, 64) ||
        !grow_snapshots(t, n_snapshots, c->shape.n_delta)) return error_memory(e, "a step");
    t->n_rows = n_rows, t->n_changes = 0, t->n_snapshots = 0;
    return 0;
}

/* One block of one form will be written: it gets a page of its own. 0 when there is none. */
static int need_page(struct cache *c, struct sequence *s, int form, int block) {
    int32_t *page = &s->pages[form][block];
    struct item_pool *p = &c->pages[form];
    if (*page != NO_PAGE && p->refs[*page] == 1) return 1;
    int fresh = items_take(p);
    if (fresh == NO_PAGE) return *page != NO_PAGE && p->refs[*page] == 1; /* making room may have ended the sharing */
    c->step.changes[c->step.n_changes++] = (struct page_change){s, form, block, *page};
    *page = fresh;
    if (block >= s->n_blocks[form]) s->n_blocks[form] = block + 1;
    return 1;
}

static int need_pages(struct cache *c, struct sequence *s, int form, int begin, int end) {
    if (c->pages[form].item_bytes == 0) return 1; /* a model without such layers */
    for (int r = begin; r < end; r = (r / BLOCK_ROWS + 1) * BLOCK_ROWS)
        if (!need_page(c, s, form, r / BLOCK_ROWS)) return 0;
    return 1;
}

/* Which rows a group brings into the state (backend/ops.h). A row alone is left to wait while there is room. */
static int what_to_fold(const struct group *g) {
    const struct sequence *s = g->seq;
    if (g->undo) return FOLD_PENDING;
    int room = s->n_pending == 0 || s->waiting ? WAIT_ROWS - s->n_pending : 0;
    return g->n_rows == 1 && room > 0 && g->n_snapshots == 0 ? FOLD_NOTHING : FOLD_ALL;
}

/* Everything that a group cannot do without. */
static int reserve_group(struct cache *c, const struct batch *b, int i) {
    const struct group *g = &b->groups[i];
    struct sequence *s = g->seq;
    struct step_group *t = &c->step.groups[i];
    *t = (struct step_group){.before = first_row(b, g), .next_position = s->next_position, .fold = what_to_fold(g)};
    memcpy(t->n_blocks, s->n_blocks, sizeof t->n_blocks);
    s->busy = 1;
    int begin = t->before, end = begin + g->n_rows, start = c->options.kv_start, had = s->slot != NO_PAGE;
    if (b->mtp) return need_pages(c, s, MTP, begin, end);
    if (sequence_need_slot(s, SLOT_ZERO)) return 0;
    t->new_slot = !had;
    if (g->undo && c->shape.n_delta > 0 && s->log_slot == NO_PAGE) {
        s->log_slot = items_take(&c->logs);
        if (s->log_slot == NO_PAGE) return 0;
        t->new_log = 1;
    }
    return need_pages(c, s, LOW, begin, end < start ? end : start) && need_pages(c, s, HIGH, begin > start ? begin : start, end);
}

/* The first n groups as they were before begin. */
static void take_back(struct cache *c, const struct batch *b, int n) {
    struct step *t = &c->step;
    for (int i = t->n_snapshots - 1; i >= 0; i--) snapshot_free(t->snapshots[i]);
    for (int i = t->n_changes - 1; i >= 0; i--) {
        struct page_change *p = &t->changes[i];
        int32_t *page = &p->seq->pages[p->form][p->block];
        items_drop(&c->pages[p->form], *page);
        *page = p->old;
    }
    for (int i = n - 1; i >= 0; i--) {
        struct sequence *s = b->groups[i].seq;
        if (t->groups[i].new_slot) items_drop(&c->states, s->slot), s->slot = NO_PAGE;
        if (t->groups[i].new_log) items_drop(&c->logs, s->log_slot), s->log_slot = NO_PAGE;
        memcpy(s->n_blocks, t->groups[i].n_blocks, sizeof s->n_blocks), s->busy = 0;
    }
    t->n_changes = t->n_snapshots = 0, t->open = 0;
}

/* Snapshots are a wish: where there is no room, NULL. */
static void reserve_snapshots(struct cache *c, struct group *g, struct step_group *t) {
    struct step *step = &c->step;
    t->snapshot0 = step->n_snapshots;
    g->snapshots = NULL;
    if (g->n_snapshots == 0) return;
    g->snapshots = step->snapshots + t->snapshot0;
    for (int i = 0; i < g->n_snapshots; i++) {
        CHECK(g->snapshot_rows[i] >= 1 && g->snapshot_rows[i] <= g->n_rows &&
              (!i || g->snapshot_rows[i - 1] < g->snapshot_rows[i]));
        struct snapshot *n = snapshot_take(c);
        if (n) n->row = t->before + g->snapshot_rows[i];
        step->snapshots[step->n_snapshots++] = n;
    }
    /* What the op needs: per layer a list without the missing ones. */
    for (int layer = 0; layer < c->shape.n_delta; layer++) {
        struct delta_snapshot *out = step->layers + (size_t)t->snapshot0 * (size_t)c->shape.n_delta + layer * g->n_snapshots;
        for (int i = 0; i < g->n_snapshots; i++) {
            if (!g->snapshots[i]) continue;
            uint8_t *at = items_at(&c->snapshots, g->snapshots[i]->slot) + (size_t)layer * c->delta.layer_bytes;
            *out++ = (struct delta_snapshot){g->snapshot_rows[i], (float *)at, (float *)(at + c->delta.conv)};
        }
    }
}

/* Tokens, keys and positions lie behind the sequence's rows until commit counts them. */
static void write_rows(struct cache *c, const struct batch *b, struct group *g, const struct step_group *t) {
    struct sequence *s = g->seq;
    int32_t (*to)[3] = (int32_t (*)[3])c->step.positions + g->row0;
    struct row_source from = {g->tokens, g->keys, g->positions, g->n_axes, g->n_rows};
    int next = s->next_position;
    for (int i = 0; i < g->n_rows; i++) {
        int row = t->before + i;
        if (b->mtp && !g->positions && row < s->rows) memcpy(to[i], s->positions + 3 * (size_t)row, sizeof to[i]);
        else if (b->mtp) row_key(&from, i, to[i], &next, 0);
        else {
            int64_t unique = g->tokens[i] < 0 && !g->keys ? cache_unique_key(c) : 0;
            s->keys[row] = row_key(&from, i, to[i], &next, unique);
            s->tokens[row] = g->tokens[i];
            memcpy(s->positions + 3 * (size_t)row, to[i], sizeof to[i]);
        }
    }
}

int cache_begin(struct cache *c, struct batch *b, struct weft_error *e) {
    struct step *t = &c->step;
    CHECK(!t->open);
    int code = make_room(c, b, e);
    if (code) return code;
    t->open = 1;
    for (int i = 0; i < b->n_groups; i++) {
        CHECK(!b->groups[i].seq->busy);
        if (reserve_group(c, b, i)) continue;
        take_back(c, b, i + 1);
        return error_set(e, WEFT_ERROR_MEMORY, "the cache's memory of %zu bytes is used up (%zu in use)", cache_memory_bytes(c),
                         c->used_bytes);
    }
    struct backend *device = c->options.backend;
    for (int i = 0; i < t->n_changes; i++) {
        const struct page_change *p = &t->changes[i];
        struct item_pool *pool = &c->pages[p->form];
        if (p->old == NO_PAGE) continue;
        device->table->copy(device, items_at(pool, p->seq->pages[p->form][p->block]), items_at(pool, p->old), pool->item_bytes);
    }
    int row0 = 0;
    for (int i = 0; i < b->n_groups; i++) {
        struct group *g = &b->groups[i];
        g->row0 = row0, row0 += g->n_rows;
        reserve_snapshots(c, g, &t->groups[i]);
        write_rows(c, b, g, &t->groups[i]);
    }
    b->n_rows = row0;
    return 0;
}

static void commit_mtp(struct cache *c, struct group *g, const struct step_group *t, int keep) {
    struct sequence *s = g->seq;
    const int32_t *at = c->step.positions + 3 * (size_t)g->row0;
    for (int i = 0; i < keep && s->mtp_aligned == t->before + i && s->mtp_aligned < s->rows; i++) {
        if (memcmp(at + 3 * i, s->positions + 3 * (size_t)s->mtp_aligned, 3 * sizeof *at) != 0) break;
        s->mtp_aligned++;
    }
    s->mtp_rows += keep;
}

static void commit_main(struct cache *c, struct group *g, const struct step_group *t, int keep) {
    struct sequence *s = g->seq;
    if (!g->undo && keep == 0) s->lost = c->shape.n_delta > 0;
    if (c->shape.n_delta > 0) {
        s->waiting = t->fold == FOLD_NOTHING;
        s->n_pending = s->waiting ? s->n_pending + keep : t->fold == FOLD_PENDING ? keep : 0;
        if (t->fold == FOLD_PENDING) s->log_half = !s->log_half;
    }
    s->rows += keep;
    if (keep > 0) s->has_hidden = 0;
    for (int r = t->before; r < s->rows; r++)
        for (int a = 0; a < 3; a++) {
            int p = s->positions[3 * (size_t)r + (size_t)a];
            if (p >= s->next_position) s->next_position = p + 1;
        }
    for (int i = 0; i < g->n_snapshots; i++)
        if (g->snapshots[i] && g->snapshot_rows[i] > keep) snapshot_free(g->snapshots[i]), g->snapshots[i] = NULL;
}

void cache_commit(struct cache *c, struct batch *b, const int *keep) {
    struct step *t = &c->step;
    CHECK(t->open);
    for (int i = 0; i < t->n_changes; i++)
        if (t->changes[i].old != NO_PAGE) items_drop(&c->pages[t->changes[i].form], t->changes[i].old);
    for (int i = 0; i < b->n_groups; i++) {
        struct group *g = &b->groups[i];
        int k = keep ? keep[i] : g->n_rows;
        CHECK(k >= 0 && k <= g->n_rows && (g->undo || b->mtp || k == 0 || k == g->n_rows));
        if (b->mtp) commit_mtp(c, g, &t->groups[i], k);
        else commit_main(c, g, &t->groups[i], k);
        sequence_trim(g->seq), g->seq->busy = 0;
    }
    t->n_changes = t->n_snapshots = 0, t->open = 0;
}

void cache_abort(struct cache *c, struct batch *b) {
    CHECK(c->step.open);
    take_back(c, b, b->n_groups);
}

void cache_attention_group(const struct cache *c, const struct batch *b, int g, struct attention_group *out) {
    const struct sequence *s = b->groups[g].seq;
    *out = (struct attention_group){.row0 = b->groups[g].row0, .n_rows = b->groups[g].n_rows,
                                    .n_before = c->step.groups[g].before,
                                    .low_pages = s->pages[LOW], .high_pages = s->pages[b->mtp ? MTP : HIGH]};
}

void cache_delta_group(const struct cache *c, const struct batch *b, int g, int layer, struct delta_group *out) {
    const struct group *from = &b->groups[g];
    const struct sequence *s = from->seq;
    CHECK(c->step.open && layer >= 0 && layer < c->shape.n_delta);
    uint8_t *at = items_at(&c->states, s->slot) + (size_t)layer * c->delta.layer_bytes;
    *out = (struct delta_group){.row0 = from->row0, .n_rows = from->n_rows, .state = (float *)at,
                                .conv = (float *)(at + c->delta.conv), .n_pending = s->n_pending};
    if (s->n_pending > 0) out->pending = sequence_pending(s, layer);
    switch (c->step.groups[g].fold) {
    case FOLD_ALL: break;
    case FOLD_PENDING: out->fold = FOLD_PENDING, out->log = sequence_undo_log(s, layer); break;
    case FOLD_NOTHING: out->fold = FOLD_NOTHING, out->log = sequence_wait_log(s, layer); break;
    }
    for (int i = 0; i < from->n_snapshots; i++) out->n_snapshots += from->snapshots[i] != NULL;
    if (out->n_snapshots == 0) return;
    out->snapshots = c->step.layers + (size_t)c->step.groups[g].snapshot0 * (size_t)c->shape.n_delta + layer * from->n_snapshots;
}

const int32_t *cache_positions(const struct cache *c) { return c->step.positions; }

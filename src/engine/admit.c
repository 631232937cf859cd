/* Admission: what runs has the memory of its worst case set aside, so that it never fails for memory; the rest waits its turn. */
#include "base/clock.h"
#include "base/mem.h"
#include "engine/draft.h"
#include "engine/inside.h"

enum {
    WORTH_WAITING_ROWS = 16,  /* a prefix that another request is just computing is waited for from this length on */
    MOST_COMING = 64,         /* requests that may wait so and let others by: the look at them costs time in every step */
};

size_t engine_request_bytes(const struct weft_engine *x, int n_tokens) {
    return cache_request_bytes(x->cache, n_tokens + draft_spare_rows(x), x->drafter != NULL);
}

size_t engine_sequence_bytes(const struct weft_engine *x, int rows) { return cache_request_bytes(x->cache, rows, 1); }

size_t engine_free_bytes(const struct weft_engine *x) {
    size_t all = cache_memory_bytes(x->cache);
    return all > x->reserved_bytes ? all - x->reserved_bytes : 0;
}

int engine_check_fits(const struct weft_engine *x, int n_prompt, int max_tokens, struct weft_error *e) {
    size_t need = engine_request_bytes(x, n_prompt + max_tokens), all = cache_memory_bytes(x->cache);
    if (need <= all) return 0;
    return error_set(
        e, WEFT_ERROR_MEMORY,
        "a prompt of %d tokens and an answer of up to %d need %.1f MB, the memory budget leaves %.1f MB for sequences", n_prompt,
        max_tokens, (double)need / 1e6, (double)all / 1e6);
}

int engine_reserve(struct weft_engine *x, size_t bytes) {
    if (bytes > engine_free_bytes(x)) return 0;
    x->reserved_bytes += bytes;
    return 1;
}

void engine_release(struct weft_engine *x, size_t bytes) {
    CHECK(bytes <= x->reserved_bytes);
    x->reserved_bytes -= bytes;
}

static struct prompt_rows prompt_of(const struct weft_request *r) {
    return (struct prompt_rows){.tokens = r->known, .n_rows = r->n_prompt, .keys = r->keys, .positions = r->o.positions,
                                .n_axes = r->o.n_axes};
}

static int uses_tree(const struct weft_request *r) {
    return r->engine->tree && !r->o.without_prefix_cache && !r->o.session;
}

/* Is a running request about to compute a long beginning of this prompt, longer than what the tree has? */
static int prefix_is_coming(struct weft_engine *x, const struct weft_request *r) {
    if (!uses_tree(r) || r->keys) return 0;
    int found = -1;
    for (int i = 0; i < x->n_running; i++) {
        const struct weft_request *other = x->running[i];
        if (other->adapters.hash != r->adapters.hash || other->keys || !uses_tree(other)) continue;
        int most = other->n_prompt < r->n_prompt ? other->n_prompt : r->n_prompt, same = 0;
        if (sequence_rows(other->seq) >= most) continue;
        while (same < most && other->known[same] == r->known[same]) same++;
        if (sequence_rows(other->seq) >= same) continue;
        struct prompt_rows p = prompt_of(r);
        if (found < 0) found = tree_find(x->tree, r->adapters.hash, &p);
        if (same >= found + WORTH_WAITING_ROWS) return 1;
    }
    return 0;
}

/* The sequence, with what the prefix cache holds of it; a session's has come before. */
static int open_sequence(struct weft_engine *x, struct weft_request *r, struct weft_error *e) {
    int code = 0;
    if (!r->seq) {
        if ((code = sequence_new(&r->seq, x->cache, e))) return code;
        sequence_set_adapters(r->seq, r->adapters.hash);
        if (uses_tree(r)) {
            struct prompt_rows p = prompt_of(r);
            int rows = tree_restore(x->tree, r->seq, &p, e);
            if (rows < 0) return rows;
            r->n_cached = rows;
        }
    }
    code = sequence_reserve(r->seq, r->room, e);
    return code ? code : draft_start(r, e);
}

/* 1: it runs, or is over with an error; 0: it has to wait. */
static int admit(struct weft_engine *x, struct weft_request *r) {
    struct weft_error e = {0, ""};
    int code = 0;
    if (atomic_load(&r->cancelled)) {
        error_set(&e, WEFT_ERROR_CANCELLED, "the request was cancelled");
        return request_finish(r, e.code, &e), 1;
    }
    if (r->o.session) {
        code = request_load_session(r, &e);
        if (code) return request_finish(r, code, &e), 1;
        if (!r->seq) return 0;
    } else {
        size_t bytes = engine_request_bytes(x, r->n_prompt + r->max_tokens);
        if (!engine_reserve(x, bytes)) return 0;
        r->reserved_bytes = bytes;
    }
    r->started_ms = clock_ms();
    if ((code = open_sequence(x, r, &e))) return request_finish(r, code, &e), 1;
    r->state = REQUEST_RUNNING;
    x->stats.prompt_tokens += (uint64_t)r->n_prompt, x->stats.cached_tokens += (uint64_t)r->n_cached;
    x->running[x->n_running++] = r;
    return 1;
}

/* A request that fits the budget but not beside the sequences that the caller holds: with nothing running nobody makes room. */
static int refuse_if_stuck(struct weft_engine *x, struct weft_request *r) {
    struct weft_error e;
    if (x->n_running) return 0;
    error_set(&e, WEFT_ERROR_MEMORY,
              "a prompt of %d tokens and an answer of up to %d need %.1f MB, sequences in use leave %.1f MB", r->n_prompt,
              r->max_tokens, (double)engine_request_bytes(x, r->n_prompt + r->max_tokens) / 1e6,
              (double)engine_free_bytes(x) / 1e6);
    request_finish(r, e.code, &e);
    return 1;
}

/* In order of arrival, but for those that wait for a prefix that is just being computed: they let others by. */
void engine_admit(struct weft_engine *x) {
    pthread_mutex_lock(&x->lock);
    struct weft_request *list = x->waiting;
    x->waiting = NULL, x->waiting_tail = &x->waiting;
    pthread_mutex_unlock(&x->lock);
    struct weft_request *kept = NULL, **tail = &kept;
    int blocked = 0, n_coming = 0, n_gone = 0;
    for (struct weft_request *r = list, *next; r; r = next) {
        next = r->next, r->next = NULL;
        int gone = 0, cancelled = atomic_load(&r->cancelled);
        if (x->n_running == x->o.parallel || n_coming == MOST_COMING) blocked = 1;
        if (cancelled) gone = admit(x, r);
        else if (!blocked && prefix_is_coming(x, r)) n_coming++;
        else if (!blocked) gone = admit(x, r) || refuse_if_stuck(x, r), blocked = !gone;
        if (gone) n_gone++;
        else *tail = r, tail = &r->next;
    }
    pthread_mutex_lock(&x->lock);
    if (kept) {
        *tail = x->waiting;
        if (!x->waiting) x->waiting_tail = tail;
        x->waiting = kept;
    }
    x->n_waiting -= n_gone;
    pthread_mutex_unlock(&x->lock);
}

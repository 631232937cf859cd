/* Requests that go on from a file, or leave one. */
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "cache/session.h"
#include "engine/draft.h"
#include "engine/inside.h"

/* The strings that a session is checked against. */
static struct session_identity identity(const struct weft_engine *x, const char *adapters) {
    struct backend *b = model_backend(x->model);
    return (struct session_identity){model_fingerprint(x->model), x->handle->folder, b->table->arithmetic(b), adapters};
}

static struct mlx_layout layout_of(const struct weft_engine *x) {
    return (struct mlx_layout){x->is_attention, model_config(x->model)->n_layers, x->handle->folder};
}

int engine_load_sequence(struct weft_engine *x, struct sequence **out, const char *path, uint64_t adapter_hash,
                         const char *adapters, struct weft_error *e) {
    if (session_is_mlx(path)) {
        struct mlx_layout layout = layout_of(x);
        int n_tokens;
        return session_load_mlx(out, x->cache, path, &layout, &n_tokens, e);
    }
    struct session_identity id = identity(x, adapters);
    return session_load(out, x->cache, path, &id, adapter_hash, e);
}

int engine_save_sequence(struct weft_engine *x, struct sequence *s, const char *path, const char *adapters,
                         struct weft_error *e) {
    if (session_is_mlx(path)) {
        struct mlx_layout layout = layout_of(x);
        return session_save_mlx(s, path, &layout, e);
    }
    struct session_identity id = identity(x, adapters);
    return session_save(s, path, &id, e);
}

/* Puts the session's tokens before the prompt, or, where the prompt is a whole conversation, checks that it begins with them. */
static int join_tokens(struct weft_request *r, struct weft_error *e) {
    int rows = sequence_rows(r->seq), given = r->n_prompt, whole = r->o.chat.messages != NULL;
    const int32_t *old = sequence_tokens(r->seq);
    if (whole) {
        for (int i = 0; i < rows; i++)
            if (i >= given || r->known[i] != old[i])
                return error_set(e, WEFT_ERROR_INPUT,
                                 "%s: the conversation does not begin with the session's %d tokens (they differ at %d)",
                                 r->o.session, rows, i);
        return 0;
    }
    if (!given && rows == 0) return error_set(e, WEFT_ERROR_INPUT, "the prompt is empty");
    int n = rows + given;
    if (n > r->engine->context)
        return error_set(e, WEFT_ERROR_INPUT, "session and prompt have %d tokens, the context holds %d", n, r->engine->context);
    if (n + r->max_tokens > r->engine->context) r->max_tokens = r->engine->context - n;
    int32_t *known = mem_new((size_t)(n + r->max_tokens + WEFT_DRAFT_MAX), sizeof *known);
    if (!known) return error_memory(e, "the session's tokens");
    memcpy(known, old, (size_t)rows * sizeof *known);
    memcpy(known + rows, r->known, (size_t)given * sizeof *known);
    mem_free(r->known);
    r->known = known, r->n_known = r->n_prompt = n, r->room = n + r->max_tokens;
    r->n_session = rows;
    return 0;
}

/* How much memory the file's rows take is known when they are there. Until then the file's size stands for it. */
int request_load_session(struct weft_request *r, struct weft_error *e) {
    struct weft_engine *x = r->engine;
    struct stat s;
    if (stat(r->o.session, &s)) return error_set(e, WEFT_ERROR_INPUT, "%s: cannot be read", r->o.session);
    size_t about = (size_t)s.st_size + engine_request_bytes(x, 1);
    if (about > cache_memory_bytes(x->cache))
        return error_set(e, WEFT_ERROR_MEMORY, "%s: needs %.1f MB, the memory budget leaves %.1f MB for sequences", r->o.session,
                         (double)about / 1e6, (double)cache_memory_bytes(x->cache) / 1e6);
    if (about > engine_free_bytes(x)) return 0;
    int n_given = r->n_prompt;
    int code = engine_load_sequence(x, &r->seq, r->o.session, r->adapters.hash, r->adapters.names, e);
    if (code) return code;
    r->n_cached = sequence_rows(r->seq);
    if ((code = join_tokens(r, e))) return code;
    if (r->n_prompt == r->n_cached && !sequence_hidden(r->seq))
        return error_set(e, WEFT_ERROR_INPUT, "%s: with this session the prompt must bring at least one token more",
                         r->o.session);
    if ((code = engine_check_fits(x, r->n_prompt, r->max_tokens, e))) return code;
    size_t bytes = engine_request_bytes(x, r->n_prompt + r->max_tokens);
    if (engine_reserve(x, bytes)) {
        r->reserved_bytes = bytes;
        return 0;
    }
    /* not now: it is loaded again when there is room */
    sequence_free(r->seq);
    r->seq = NULL, r->n_cached = 0;
    if (r->n_session) {
        memmove(r->known, r->known + r->n_session, (size_t)n_given * sizeof *r->known);
        r->n_known = r->n_prompt = n_given, r->n_session = 0;
    }
    return 0;
}

int request_save_session(struct weft_request *r, struct weft_error *e) {
    if (r->has_last_hidden) sequence_set_hidden(r->seq, r->last_hidden);
    return engine_save_sequence(r->engine, r->seq, r->o.session_save, r->adapters.names, e);
}

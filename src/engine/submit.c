/* A request as it comes in: checked, copied, its prompt turned into tokens. Runs in the submitting thread and touches nothing of
 * the engine that a step changes. */
#include <string.h>

#include "base/mem.h"
#include "engine/adapters.h"
#include "engine/draft.h"
#include "engine/inside.h"

enum { MOST_LOGPROBS = 1000, MOST_STOPS = 64 };

void weft_request_defaults(const struct weft_model *m, struct weft_request_options *out) {
    *out = (struct weft_request_options){.max_tokens = 512, .thinking_budget = -1, .logprobs = -1};
    weft_sampling_defaults(m, &out->sampling);
}

static void *copy(struct weft_request *r, const void *from, size_t bytes) {
    void *to = arena_new(&r->arena, bytes ? bytes : 1, 1);
    if (to && bytes) memcpy(to, from, bytes);
    return to;
}

static int copy_text(struct weft_request *r, const char **text) {
    return !*text || (*text = arena_copy_text(&r->arena, *text, strlen(*text)));
}

static int copy_options(struct weft_request *r, struct weft_error *e) {
    struct weft_request_options *o = &r->o;
    int n = o->n_stop, ok = copy_text(r, &o->session) && copy_text(r, &o->session_save) && copy_text(r, &o->chat.tools);
    size_t hidden = (size_t)r->engine->hidden;
    const char **stop = arena_new(&r->arena, (size_t)n + 1, sizeof *stop);
    for (int i = 0; ok && stop && i < n; i++) stop[i] = o->stop[i], ok = copy_text(r, &stop[i]);
    o->stop = stop;
    o->sampling.bias = copy(r, o->sampling.bias, (size_t)o->sampling.n_bias * sizeof *o->sampling.bias);
    o->embeddings = copy(r, o->embeddings, (size_t)o->n_embeddings * hidden * sizeof *o->embeddings);
    if (o->positions) {
        o->positions = copy(r, o->positions, (size_t)o->n_axes * (size_t)o->n_tokens * sizeof *o->positions);
        ok = ok && o->positions;
    }
    r->top = arena_new(&r->arena, (size_t)(o->logprobs > 0 ? o->logprobs : 0) + 1, sizeof *r->top);
    if (o->session_save) {
        r->last_hidden = arena_new(&r->arena, hidden, sizeof *r->last_hidden);
        ok = ok && r->last_hidden;
    }
    if (!ok || !stop || !o->sampling.bias || !o->embeddings || !r->top) return error_memory(e, "the request");
    return 0;
}

static int check_options(const struct weft_engine *x, const struct weft_request_options *o, struct weft_error *e) {
    if (o->logprobs > MOST_LOGPROBS)
        return error_set(e, WEFT_ERROR_INPUT, "logprobs is %d, at most %d", o->logprobs, MOST_LOGPROBS);
    if (o->n_stop < 0 || o->n_stop > MOST_STOPS)
        return error_set(e, WEFT_ERROR_INPUT, "%d stop texts, at most %d", o->n_stop, MOST_STOPS);
    for (int i = 0; i < o->n_stop; i++)
        if (!o->stop[i] || !o->stop[i][0]) return error_set(e, WEFT_ERROR_INPUT, "stop text %d is empty", i + 1);
    if (o->n_embeddings < 0 || (o->n_embeddings > 0 && !o->embeddings))
        return error_set(e, WEFT_ERROR_INPUT, "embedding rows are missing");
    if (o->positions && ((o->n_axes != 1 && o->n_axes != 3) || !o->tokens))
        return error_set(e, WEFT_ERROR_INPUT, "positions have %d axes, 1 or 3 go with tokens", o->n_axes);
    int n_prompts = (o->chat.messages != NULL) + (o->text != NULL) + (o->tokens != NULL);
    if (n_prompts > 1 || (n_prompts == 0 && !o->session))
        return error_set(e, WEFT_ERROR_INPUT, "a request has one prompt, messages, text or tokens; this one has %d", n_prompts);
    return sampling_check(&o->sampling, x->vocab, e);
}

static int take_prompt(struct weft_request *r, const struct weft_request_options *o, int32_t **ids, size_t *n,
                       struct weft_error *e) {
    struct weft_model *m = r->engine->handle;
    *ids = NULL, *n = 0;
    if (o->chat.messages) return weft_render_tokens(m, &o->chat, ids, n, e);
    if (o->text) return weft_tokenize(m, o->text, o->n_bytes, WEFT_ADDED_ALL, ids, n, e);
    if (o->n_tokens < 0) return error_set(e, WEFT_ERROR_INPUT, "the prompt has %d tokens", o->n_tokens);
    *n = (size_t)o->n_tokens;
    *ids = mem_new(*n + 1, sizeof **ids);
    if (!*ids) return error_memory(e, "the prompt");
    if (*n) memcpy(*ids, o->tokens, *n * sizeof **ids);
    return 0;
}

/* Embedding rows are told apart by what is in them, so that a prompt with the same ones can use what the cache has. */
static int64_t hash_row(const float *row, int n) {
    uint64_t h = 0xcbf29ce484222325u;
    const unsigned char *b = (const unsigned char *)row;
    for (size_t i = 0; i < (size_t)n * sizeof *row; i++) h = (h ^ b[i]) * 0x100000001b3u;
    return (int64_t)(h >> 1);
}

static int check_tokens(struct weft_request *r, struct weft_error *e) {
    const struct weft_engine *x = r->engine;
    int64_t *keys = NULL;
    for (int i = 0; i < r->n_prompt; i++) {
        int32_t t = r->known[i];
        if (t >= x->vocab || (t < 0 && -1 - t >= r->o.n_embeddings))
            return error_set(e, WEFT_ERROR_INPUT,
                             "token %d of the prompt is %d; the vocabulary has %d and there are %d embedding rows", i, (int)t,
                             x->vocab, r->o.n_embeddings);
        if (t >= 0) continue;
        if (!keys && !(keys = arena_new(&r->arena, (size_t)r->n_prompt, sizeof *keys))) return error_memory(e, "the request");
        keys[i] = hash_row(r->o.embeddings + (size_t)(-1 - t) * (size_t)x->hidden, x->hidden);
    }
    r->keys = keys;
    return 0;
}

/* As many tokens as context and memory allow, for max_tokens < 0. */
static int most_tokens(const struct weft_engine *x, int n_prompt) {
    int low = 0, high = x->context - n_prompt;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (engine_check_fits(x, n_prompt, middle, NULL)) high = middle - 1;
        else low = middle;
    }
    return low;
}

static int size_request(struct weft_request *r, struct weft_error *e) {
    struct weft_engine *x = r->engine;
    int n = r->n_prompt, left = x->context - n;
    if (n == 0 && !r->o.session) return error_set(e, WEFT_ERROR_INPUT, "the prompt is empty");
    if (left < 0) return error_set(e, WEFT_ERROR_INPUT, "the prompt has %d tokens, the context holds %d", n, x->context);
    r->max_tokens = r->o.max_tokens;
    if (r->max_tokens < 0) r->max_tokens = most_tokens(x, n);
    if (r->max_tokens > left) r->max_tokens = left;
    return engine_check_fits(x, n, r->max_tokens, e);
}

static int fill(struct weft_request *r, const struct weft_request_options *o, struct weft_error *e) {
    struct weft_engine *x = r->engine;
    int32_t *ids;
    size_t n;
    int code = check_options(x, o, e);
    if (!code) code = take_prompt(r, o, &ids, &n, e);
    if (code) return code;
    r->known = ids;
    if (n > INT32_MAX / 4)
        return error_set(e, WEFT_ERROR_INPUT, "the prompt has %zu tokens, the context holds %d", n, x->context);
    r->n_known = r->n_prompt = (int)n;
    if ((code = copy_options(r, e)) || (code = check_tokens(r, e)) || (code = size_request(r, e))) return code;
    r->room = r->n_prompt + r->max_tokens;
    int32_t *known = mem_resize(r->known, (size_t)(r->room + WEFT_DRAFT_MAX + 1) * sizeof *known);
    if (!known) return error_memory(e, "the request");
    r->known = known;
    if ((code = adapter_choice_make(&r->adapters, x, o->adapters, o->n_adapters, e))) return code;
    struct reply_options reply = {.model = x->handle, .raw = o->raw_output, .stop = r->o.stop, .n_stop = o->n_stop,
                                  .tools = r->o.chat.tools, .prompt = r->known, .n_prompt = r->n_prompt};
    return reply_new(&r->reply, &reply, e);
}

int request_new(struct weft_request **out, struct weft_engine *x, const struct weft_request_options *o, struct weft_error *e) {
    struct weft_request *r = mem_new(1, sizeof *r);
    if (!r) return error_memory(e, "the request");
    r->engine = x, r->o = *o;
    r->result.stop_token = -1;
    arena_init(&r->arena);
    int code = fill(r, o, e);
    if (code) request_free(r);
    else *out = r;
    return code;
}

/* A request from its last row's logits to its end. */
#include "engine/inside.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cache/session.h"
#include "engine/adapters.h"
#include "engine/draft.h"

int request_pending(const struct weft_request *r) { return r->n_known - sequence_rows(r->seq); }

int request_send(struct weft_request *r, struct weft_event *event) {
    event->request = r;
    if (!r->o.on_event || r->state == REQUEST_DONE) return 0;
    if (r->o.on_event(r->o.arg, event)) atomic_store(&r->cancelled, 1);
    return atomic_load(&r->cancelled);
}

static int send_piece(void *arg, struct weft_event *event) { return request_send(arg, event); }

static int is_end(const struct weft_request *r, int32_t token) {
    const struct weft_model *m = r->engine->handle;
    for (int i = 0; i < m->n_ends; i++)
        if (m->ends[i] == token) return 1;
    return 0;
}

/* One more token of the answer, drawn or forced. The request may be over after it: r->state tells. */
static void take_token(struct weft_request *r, int32_t token, const struct sampler_output *drawn) {
    CHECK(r->n_known < r->room);
    r->known[r->n_known++] = token;
    r->n_generated++;
    r->engine->stats.generated_tokens++;
    double now = clock_ms();
    if (r->n_generated == 1) r->first_ms = now;
    r->last_ms = now;
    if (reply_in_reasoning(r->reply)) r->result.n_reasoning++;
    if (r->o.want_tokens) {
        struct weft_event event = {.kind = WEFT_EVENT_TOKEN, .token = token};
        if (drawn && r->o.logprobs >= 0) event.logprob = drawn->logprob, event.top = r->top, event.n_top = drawn->n_top;
        request_send(r, &event);
    }
    int end = is_end(r, token) && !r->o.ignore_eos;
    int said = reply_add(r->reply, token, end, send_piece, r, &r->failure);
    if (said == REPLY_CANCELLED || said == REPLY_FAILED) return;
    if (end || said == REPLY_STOPPED) {
        r->result.finish = WEFT_FINISH_STOP;
        r->result.stop_token = end ? token : -1;
        r->state = REQUEST_FINISHING;
    } else if (r->n_generated >= r->max_tokens) {
        r->result.finish = WEFT_FINISH_LENGTH;
        r->state = REQUEST_FINISHING;
    }
}

/* Reasoning that has used its budget is ended by tokens that the caller of the model knows already. */
static void end_reasoning(struct weft_request *r) {
    const struct token_list *end = &r->engine->forced_end;
    if (r->o.thinking_budget < 0 || r->result.n_reasoning < r->o.thinking_budget || !reply_in_reasoning(r->reply)) return;
    int n_reasoning = r->result.n_reasoning;
    for (size_t i = 0; i < end->n && r->state == REQUEST_RUNNING && !atomic_load(&r->cancelled); i++)
        take_token(r, end->ids[i], NULL);
    r->result.n_reasoning = n_reasoning;
}

void request_begin_answer(struct weft_request *r) {
    r->started_answer = 1;
    if (r->max_tokens == 0) {
        r->result.finish = WEFT_FINISH_LENGTH;
        r->state = REQUEST_FINISHING;
    } else {
        end_reasoning(r);
    }
}

int request_draw(struct weft_request *r, const float *logits, int32_t *token, struct weft_error *e) {
    struct weft_engine *x = r->engine;
    struct sampler_input in = {.logits = logits, .o = &r->o.sampling, .context = r->known, .n_context = r->n_known,
                               .position = (uint64_t)r->n_known, .keep = x->keep_tokens, .n_keep = x->n_keep_tokens,
                               .n_top = r->o.logprobs, .top = r->top};
    struct sampler_output drawn;
    int code = sampler_pick(x->sampler, &in, &drawn, e);
    if (code) return code;
    *token = drawn.token;
    take_token(r, drawn.token, &drawn);
    if (r->state == REQUEST_RUNNING) end_reasoning(r);
    return 0;
}

static void publish(struct weft_request *r) {
    struct weft_engine *x = r->engine;
    struct weft_error ignored;
    if (!x->tree || r->o.without_prefix_cache || r->n_generated == 0 || sequence_rows(r->seq) <= r->n_prompt) return;
    tree_store_end(x->tree, r->seq, &ignored); /* a cache that has no room loses nothing but time */
}

void request_finish(struct weft_request *r, int code, const struct weft_error *e) {
    struct weft_engine *x = r->engine;
    struct weft_error saved = {0, ""};
    if (code) {
        r->result.finish = WEFT_FINISH_ERROR;
        r->result.error = *e;
    } else {
        publish(r);
        if (r->o.session_save && (code = request_save_session(r, &saved))) {
            r->result.finish = WEFT_FINISH_ERROR;
            r->result.error = saved;
        }
    }
    if (r->result.finish != WEFT_FINISH_ERROR) {
        struct weft_error ignored;
        reply_end(r->reply, r->result.finish == WEFT_FINISH_LENGTH, send_piece, r, &ignored);
        if (r->result.finish == WEFT_FINISH_STOP && reply_tool_calls(r->reply)) r->result.finish = WEFT_FINISH_TOOL_CALLS;
    }
    draft_finish(r);
    sequence_free(r->seq);
    r->seq = NULL;
    engine_release(x, r->reserved_bytes);
    r->reserved_bytes = 0;
    double now = clock_ms(), started = r->started_ms ? r->started_ms : now;
    r->result.tokens = r->known + r->n_known - r->n_generated;
    r->result.n_tokens = r->n_generated;
    r->result.n_prompt = r->n_prompt, r->result.n_cached = r->n_cached;
    r->result.queue_ms = started - r->submitted_ms;
    r->result.prompt_ms = (r->n_generated ? r->first_ms : now) - started;
    r->result.predicted_ms = r->n_generated ? r->last_ms - r->first_ms : 0;
    struct weft_event done = {.kind = WEFT_EVENT_DONE, .result = &r->result};
    request_send(r, &done);
    r->state = REQUEST_DONE;
    request_free(r);
}

void request_free(struct weft_request *r) {
    if (!r) return;
    sequence_free(r->seq);
    reply_free(r->reply);
    adapter_choice_drop(&r->adapters);
    mem_free(r->known);
    arena_drop(&r->arena);
    mem_free(r);
}

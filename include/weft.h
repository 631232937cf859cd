/* weft: an inference engine for the Qwen3.5 family of hybrid language models.
 *
 *     model    weights, tokenizer, chat template; opened once, read-only afterwards
 *     engine   over one model: the memory of all sequences, the prefix cache, the scheduler
 *     request  a prompt and what to do with it; many run at once, packed into common steps
 *     sequence the low level: rows stepped by hand, for research and for engines of one's own
 *
 * Rules
 * 1. Every function that can fail returns 0 or a WEFT_ERROR_ code and then writes one sentence into `e`, which may be NULL.
 * 2. A structure of options that is all zero holds the defaults, except sampling and requests: those are filled by a _defaults
 *    function, since 0 means something there.
 * 3. Pointers that go in are read during the call and not kept, unless said otherwise. Pointers that come out belong to the
 *    object they come from; those to be released are released with weft_free or with the function named beside them.
 * 4. Threads: a model's text functions may be called from any number of threads. weft_submit, weft_cancel and weft_engine_wait
 *    may be called from any thread. Everything else that takes an engine, a sequence or an adapter is called by one thread at a
 *    time; several engines of one model count as one. Callbacks come from the thread that steps, and may submit and cancel.
 * 5. Same model, same arithmetic (weft_model_info), same request: same tokens, whatever else runs, however the prompt was cut,
 *    with any number of threads, cached or not, with or without drafting. */
#ifndef WEFT_H
#define WEFT_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(WEFT_BUILDING) && defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif

/* ---- errors ------------------------------------------------------------------------------------------------------------- */

enum weft_code {
    WEFT_OK = 0,
    WEFT_ERROR_INPUT = -1,     /* what came from outside is wrong: file, argument, request */
    WEFT_ERROR_MEMORY = -2,    /* memory or the memory budget is used up; nothing was changed */
    WEFT_ERROR_SUPPORT = -3,   /* well-formed, but not something this version runs */
    WEFT_ERROR_NUMERIC = -4,   /* logits are not finite: the weights or the state are damaged */
    WEFT_ERROR_CANCELLED = -5,
};

struct weft_error {
    int code;
    char message[512]; /* one sentence that names the file, tensor or field; no full stop, no newline */
};

WEFT_API const char *weft_version(void);
WEFT_API void weft_free(void *p); /* NULL is fine */

/* Warnings (2), progress (1) and details (0) of the library, one line each; from any thread. NULL: dropped (as at first). */
WEFT_API void weft_set_log(void (*sink)(void *arg, int level, const char *line), void *arg);

/* ---- model -------------------------------------------------------------------------------------------------------------- */

struct weft_model;

enum weft_precision { WEFT_PRECISION_DEFAULT, WEFT_PRECISION_HIGH }; /* inputs of integer weights: int8, or bf16 */

struct weft_model_options {
    const char *hub_cache; /* folder of the Hugging Face cache, where names like "Qwen/Qwen3.5-4B" are looked up; NULL: none */
    const char *device;        /* NULL: "cpu" */
    const char *isa;           /* NULL: by the CPU's model; "portable", "avx2", "avxvnni", "avx512", "avx512bf16", "amx", "neon" */
    int precision;             /* enum weft_precision */
    int threads;               /* 0: as many as the process may use */
    int context;               /* rows of the longest sequence; 0: what the model was made for */
    int step_rows;             /* most rows in one step; 0: 512 */
    int parallel;              /* most sequences in one step; 0: 64 */
    int step_logits;           /* most rows with logits in one step; 0: 64 */
    int without_mtp;           /* leave the multi-token head out */
    int norms, mtp_norms;      /* 0: found out from the values; 1: stored as gain - 1; 2: stored as gain */
    void (*progress)(void *arg, const char *what, double fraction); /* from the opening thread */
    void *progress_arg;
};

/* `path` is a model folder or a name on the Hub. */
WEFT_API int weft_model_open(struct weft_model **out, const char *path, const struct weft_model_options *o, struct weft_error *e);
/* Engines and adapters of the model are closed before. NULL is fine. */
WEFT_API void weft_model_close(struct weft_model *m);

struct weft_model_info {
    const char *folder, *model_type;
    const char *arithmetic;    /* one line; equal lines and equal fingerprints give equal answers */
    const char *isa;
    uint64_t fingerprint;      /* of the weights */
    int vocab, hidden, layers, context, threads;
    int step_rows, step_logits, parallel;
    int has_mtp, has_tokenizer, has_template;
    int n_ends; const int32_t *ends; /* end tokens */
    size_t packed_bytes, mapped_bytes, workspace_bytes;
};
WEFT_API void weft_model_info(const struct weft_model *m, struct weft_model_info *out);

/* ---- text --------------------------------------------------------------------------------------------------------------- */

/* Which added tokens of a text become their ids. PLAIN is right for what a user typed: special tokens stay text. */
enum weft_added { WEFT_ADDED_PLAIN, WEFT_ADDED_ALL, WEFT_ADDED_NONE };

/* Text is UTF-8, sizes in bytes. *ids and *text are released with weft_free; *text has a zero byte behind it. */
WEFT_API int weft_tokenize(struct weft_model *m, const char *text, size_t n_bytes, int added, int32_t **ids, size_t *n_ids,
                           struct weft_error *e);
WEFT_API int weft_detokenize(struct weft_model *m, const int32_t *ids, size_t n_ids, int skip_special, char **text,
                             size_t *n_bytes, struct weft_error *e);

/* A conversation in the OpenAI form. All texts are JSON. */
struct weft_chat {
    const char *messages;      /* array of {"role", "content", ...} */
    const char *tools;         /* array, or NULL */
    const char *template_args; /* object whose members the chat template sees, or NULL */
    int thinking;              /* 1 on, -1 off, 0: as the template does by itself */
    int continue_last;         /* the last message is an answer to be continued: no new turn is opened */
};
/* The prompt as the chat template writes it. */
WEFT_API int weft_render(struct weft_model *m, const struct weft_chat *chat, char **text, size_t *n_bytes, struct weft_error *e);
/* And its tokens: texts inside messages cannot produce special tokens. */
WEFT_API int weft_render_tokens(struct weft_model *m, const struct weft_chat *chat, int32_t **ids, size_t *n_ids,
                                struct weft_error *e);

/* ---- engine ------------------------------------------------------------------------------------------------------------- */

struct weft_engine;
struct weft_adapter;

enum { WEFT_DRAFT_MAX = 8 };   /* longest draft */

struct weft_engine_options {
    size_t memory_bytes;       /* budget of weights, workspace, adapters and sequences; 0: 4/5 of the memory that is free */
    size_t cache_bytes;        /* part of it for the prefix cache's state snapshots; 0: a quarter */
    int parallel;              /* requests that run at once, the others wait; 0: the model's */
    int prefill_chunk;         /* most prompt rows in one step; 0: the model's step_rows; less in long contexts (bounded time) */
    const char *kv;            /* attention rows: NULL or "16", "8", "6", "5", "4", "3", "2", "turbo:kXvY" */
    int kv_group;              /* 0: 64 */
    int kv_start;              /* rows before this one stay unquantized */
    const char *kv_config;     /* NULL or "off"; "on": kv_config.json of the model's folder; else a file */
    int snapshot_every;        /* rows between state snapshots of prompts; 0: 256 */
    int without_prefix_cache;
    const char *draft;         /* NULL or "none", "mtp", "ngram", "model" */
    struct weft_model *draft_model; /* for "model": same vocabulary; stays open longer than the engine */
    int draft_max;             /* 1 to WEFT_DRAFT_MAX; 0: 4 */
    int draft_always;          /* never shorten or switch off drafts that do not pay */
};

WEFT_API int weft_engine_open(struct weft_engine **out, struct weft_model *m, const struct weft_engine_options *o,
                              struct weft_error *e);
/* Requests still running end with WEFT_ERROR_CANCELLED. Sequences are freed before. */
WEFT_API void weft_engine_close(struct weft_engine *engine);

/* An adapter folder (PEFT or MLX). Its memory is taken from the engine's budget; it is refused when so much is not free, and a
 * request still waiting that then can never fit ends with WEFT_ERROR_MEMORY. *report, if wanted, says in lines what matched;
 * weft_free. */
WEFT_API int weft_adapter_open(struct weft_adapter **out, struct weft_engine *engine, const char *folder, char **report,
                               struct weft_error *e);
WEFT_API void weft_adapter_close(struct weft_adapter *a); /* no request or sequence uses it any more */
struct weft_adapter_use { struct weft_adapter *adapter; float weight; };

struct weft_engine_stats {
    size_t memory_bytes;       /* budget of sequences: that of the engine less weights, workspace and adapters */
    size_t used_bytes, reserved_bytes, peak_used_bytes; /* of it; reserved: the worst case of all that runs */
    size_t resident_peak_bytes; /* of the process */
    uint64_t steps, rows, logit_rows;
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t drafted[WEFT_DRAFT_MAX], accepted[WEFT_DRAFT_MAX]; /* by depth - 1 */
    int running, waiting;
};
WEFT_API void weft_engine_stats(const struct weft_engine *engine, struct weft_engine_stats *out);

/* Runs one step for everything that is ready and delivers its events. Returns 1 while there is more to do, 0 when idle, or a
 * negative code when the engine itself failed (requests have then ended with it). */
WEFT_API int weft_engine_step(struct weft_engine *engine, struct weft_error *e);
/* Sleeps until something is submitted or timeout_ms passed (< 0: for ever). 1 when there is work. */
WEFT_API int weft_engine_wait(struct weft_engine *engine, int timeout_ms);

/* ---- requests ----------------------------------------------------------------------------------------------------------- */

struct weft_bias { int32_t token; float add; };

/* In this order: logits; logit_bias; repetition, presence, frequency penalty over the last *_context tokens of prompt and answer;
 * logprobs = logits - logsumexp; temperature 0: the largest, the lowest id on ties; else top_p, min_p, xtc, top_k, all on these
 * probabilities, and a draw from softmax(logprobs / temperature). The random numbers are Philox4x32-10 with key = seed and
 * counter = (row number of the token that is drawn, purpose): docs/sampling.md. */
struct weft_sampling {
    float temperature;
    float top_p;               /* used if 0 < top_p < 1: the least likely tokens that together have 1 - top_p go */
    float min_p;               /* used if > 0: less likely than min_p times the likeliest go */
    int min_keep;              /* min_p leaves at least so many */
    int top_k;                 /* used if > 0 */
    float xtc_probability;     /* with this probability every token goes that is likelier than the least likely one above */
    float xtc_threshold;       /* this, at most 0.5; newline and end tokens stay */
    float repetition_penalty;  /* 0 or 1: off */
    float presence_penalty, frequency_penalty;
    int repetition_context, presence_context, frequency_context; /* tokens; 0: 20; < 0: all */
    const struct weft_bias *bias; int n_bias;
    uint64_t seed;
};
/* What the model's generation_config says; temperature 0 where it says nothing. */
WEFT_API void weft_sampling_defaults(const struct weft_model *m, struct weft_sampling *out);

enum weft_event_kind {
    WEFT_EVENT_PROGRESS,       /* prompt rows were read: done of total */
    WEFT_EVENT_TEXT,           /* text of the answer, whole characters */
    WEFT_EVENT_REASONING,      /* text between the thinking marks */
    WEFT_EVENT_TOOL_CALL,      /* one whole call */
    WEFT_EVENT_TOKEN,          /* each token, before its text; only if want_tokens */
    WEFT_EVENT_DONE,           /* last event: the result */
};
enum weft_finish { WEFT_FINISH_STOP, WEFT_FINISH_LENGTH, WEFT_FINISH_TOOL_CALLS, WEFT_FINISH_ERROR };

struct weft_logprob { int32_t token; float logprob; };

struct weft_result {
    int finish;                /* enum weft_finish */
    struct weft_error error;   /* code 0 unless finish is WEFT_FINISH_ERROR */
    int32_t stop_token;        /* the end token, or -1: a text of `stop` was met, or finish is not a stop */
    const int32_t *tokens; int n_tokens; /* generated, end token included */
    int n_prompt, n_cached, n_reasoning; /* tokens */
    double queue_ms, prompt_ms, predicted_ms; /* waiting; start to first token; first to last token */
    int drafted[WEFT_DRAFT_MAX], accepted[WEFT_DRAFT_MAX]; /* by depth - 1 */
};

struct weft_event {
    int kind;                  /* enum weft_event_kind */
    struct weft_request *request;
    int done, total;
    const char *text; size_t n_bytes;
    const char *id, *name, *arguments; /* tool call; arguments is JSON text */
    int32_t token;
    float logprob; const struct weft_logprob *top; int n_top; /* if logprobs was asked for */
    const struct weft_result *result;
};
/* Everything in the event is valid during the call only. Not 0: cancel the request. */
typedef int weft_on_event(void *arg, const struct weft_event *event);

struct weft_request_options {
    /* the prompt, one of these */
    struct weft_chat chat;     /* if chat.messages is given */
    const char *text; size_t n_bytes; /* as it stands, no template; added tokens in it are found */
    const int32_t *tokens; int n_tokens; /* -1 - j: row j of `embeddings` */
    const float *embeddings; int n_embeddings; /* [n][hidden] */
    const int32_t *positions; int n_axes; /* [n_axes][n_tokens], n_axes 1 or 3; NULL: counted */

    struct weft_sampling sampling;
    int max_tokens;            /* 0: only read the prompt; < 0: as many as context and memory allow */
    const char *const *stop; int n_stop; /* texts that end the answer and are not part of it */
    int ignore_eos;
    int thinking_budget;       /* tokens of reasoning after which it is ended; < 0: no limit */
    int logprobs;              /* -1: none; n: the chosen token's and the n likeliest */
    int raw_output;            /* every token is text: no reasoning, no tool calls, special tokens shown */
    int want_tokens, want_progress;
    const struct weft_adapter_use *adapters; int n_adapters; /* summed */
    int without_prefix_cache, without_draft;
    const char *session;       /* file: the prompt follows what it holds (with chat: begins with it) */
    const char *session_save;  /* file written after the last token; *.safetensors: an MLX prompt cache */

    weft_on_event *on_event; void *arg;
};
WEFT_API void weft_request_defaults(const struct weft_model *m, struct weft_request_options *out);

/* Queues a request. One that could never fit the budget or the context is refused here, with the numbers; one that is
 * accepted never fails for memory. *out (may be NULL) is valid until its DONE event returns. */
WEFT_API int weft_submit(struct weft_request **out, struct weft_engine *engine, const struct weft_request_options *o,
                         struct weft_error *e);
/* Its DONE event comes with the next step, with WEFT_ERROR_CANCELLED. */
WEFT_API void weft_cancel(struct weft_request *r);

/* Submit one request and step until it is done (other requests run on). o->on_event may be NULL. */
struct weft_answer {
    char *text, *reasoning;    /* never NULL */
    char *tool_calls;          /* JSON array of {"name", "arguments"}, or NULL */
    int32_t *tokens;           /* [result.n_tokens] */
    struct weft_result result; /* result.tokens is `tokens` */
};
WEFT_API int weft_generate(struct weft_answer *out, struct weft_engine *engine, const struct weft_request_options *o,
                           struct weft_error *e);
WEFT_API void weft_answer_drop(struct weft_answer *a);

/* ---- sequences ---------------------------------------------------------------------------------------------------------- */

struct weft_sequence;

/* Memory for max_rows is set aside; WEFT_ERROR_MEMORY with the numbers if it is not there. */
WEFT_API int weft_sequence_new(struct weft_sequence **out, struct weft_engine *engine, int max_rows, struct weft_error *e);
WEFT_API int weft_sequence_fork(struct weft_sequence **out, const struct weft_sequence *from, struct weft_error *e);
WEFT_API void weft_sequence_free(struct weft_sequence *s);
WEFT_API int weft_sequence_rows(const struct weft_sequence *s);
WEFT_API int weft_sequence_mtp_rows(const struct weft_sequence *s);
WEFT_API const int32_t *weft_sequence_tokens(const struct weft_sequence *s); /* [rows] */
/* Files that only the same model with the same arithmetic accepts; *.safetensors is written as an MLX prompt cache. */
WEFT_API int weft_sequence_save(struct weft_sequence *s, const char *path, struct weft_error *e);
WEFT_API int weft_sequence_restore(struct weft_sequence **out, struct weft_engine *engine, const char *path, int max_rows,
                                   struct weft_error *e);
/* Adapters of its rows, chosen while it is empty; n = 0: none. */
WEFT_API int weft_sequence_adapters(struct weft_sequence *s, const struct weft_adapter_use *uses, int n, struct weft_error *e);

/* One sequence's share of a step. */
struct weft_group {
    struct weft_sequence *sequence; /* at most once in a step */
    int n_rows;
    const int32_t *tokens;     /* [n_rows]; -1 - j: row j of `embeddings` */
    const float *embeddings; int n_embeddings; /* [n][hidden] */
    const int32_t *positions; int n_axes; /* [n_axes][n_rows]; NULL: counted on */
    int n_logits;              /* logits of the last n rows */
    int undo;                  /* the step stays open until weft_commit says what to keep; at most WEFT_DRAFT_MAX + 1 rows */
    int want_hidden, want_taps;
    const float *hidden_in;    /* MTP steps: [n_rows][hidden], final hidden rows; tokens are those that follow them */

    /* Filled by the step, valid until the next one. */
    const float *logits;       /* [n_logits][vocab] */
    const float *hidden;       /* [n_rows][hidden] after the final norm */
    const float *const *taps;  /* [n_taps] of [n_rows][hidden]: the residual stream after those layers */
};
struct weft_step_options {
    const int *taps; int n_taps; /* layers, ascending */
    int mtp;                   /* rows of the multi-token head */
};
/* Rows and logits in all: at most the model's step_rows and step_logits. Without undo groups everything is committed. */
WEFT_API int weft_step(struct weft_engine *engine, struct weft_group *groups, int n_groups, const struct weft_step_options *o,
                       struct weft_error *e);
/* keep[g] rows of group g: 0 to n_rows for undo groups, n_rows for others. */
WEFT_API int weft_commit(struct weft_engine *engine, const int *keep, struct weft_error *e);
/* Rows of the embedding matrix: out [n][hidden]. */
WEFT_API int weft_embed(struct weft_engine *engine, const int32_t *tokens, int n, float *out, struct weft_error *e);
/* Logits of hidden rows: out [n][vocab]; n at most step_logits. */
WEFT_API int weft_head(struct weft_engine *engine, const float *hidden, int n, float *out, struct weft_error *e);
/* The token that these logits [vocab] give after the sequence's tokens so far (penalties, row number of the random number). */
WEFT_API int weft_sample(struct weft_sequence *s, const float *logits, const struct weft_sampling *o, int32_t *token,
                         struct weft_error *e);

#ifdef __cplusplus
}
#endif
#endif

/* Inside of the public handles, for engine/ and the commands that look deeper than weft.h. One batch of an engine is open at a
 * time, whoever steps; what runs has its worst case reserved (admit.c), so that the cache cannot refuse it. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H
#include "model/model.h"
#include "text/tokenizer.h"
#include "weft.h"

struct template;
struct special { int32_t id; const char *text; size_t n_bytes; };

struct weft_model {
    struct model *model;
    struct tokenizer *tokenizer;        /* NULL: the folder has none */
    struct template *chat;              /* NULL: the folder has none that works; why stands in chat_error */
    struct weft_error chat_error;
    struct special *specials; int n_specials; /* the tokenizer's special tokens */
    char *folder;
    int n_ends; int32_t ends[CONFIG_ENDS]; /* those of generation_config and config */
    int32_t newline;                    /* the token of "\n", or -1 */
};

struct model *engine_model(const struct weft_engine *engine);
struct weft_model *engine_handle(const struct weft_engine *engine);
struct cache *engine_cache(const struct weft_engine *engine);

/* Bytes that a sequence of `rows` rows takes at most, and what is free of the budget. */
size_t engine_sequence_bytes(const struct weft_engine *engine, int rows);
size_t engine_free_bytes(const struct weft_engine *engine);
#endif

/* A prompt given as embedding rows, as soft prompts and media towers have it: the rows of a text's tokens, looked up, give the
 * answer that the tokens give. Token rows and embedding rows may stand in one prompt: a token below 0 names a row.
 *     embeddings MODEL */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

static int ask(struct weft_model *model, struct weft_engine *engine, const int32_t *tokens, int n, const float *rows, int n_rows,
               struct weft_error *e) {
    struct weft_request_options request;
    struct weft_answer answer;
    weft_request_defaults(model, &request);
    request.tokens = tokens, request.n_tokens = n;
    request.embeddings = rows, request.n_embeddings = n_rows;
    request.sampling.temperature = 0;
    int r = weft_generate(&answer, engine, &request, e);
    if (r == 0) printf("%s\n", answer.text), weft_answer_drop(&answer);
    return r;
}

int main(int argc, char **argv) {
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"Who are you?\"}]";
    struct weft_error e = {0};
    struct weft_model *model = NULL;
    struct weft_engine *engine = NULL;
    struct weft_model_info info;
    int32_t *ids = NULL;
    float *rows = NULL;
    size_t n = 0;
    int r = weft_model_open(&model, argc > 1 ? argv[1] : "models/tiny", NULL, &e);
    if (r == 0) r = weft_engine_open(&engine, model, NULL, &e);
    if (r == 0) r = weft_render_tokens(model, &(struct weft_chat){.messages = messages, .thinking = -1}, &ids, &n, &e);
    if (r == 0) {
        weft_model_info(model, &info);
        rows = malloc(n * (size_t)info.hidden * sizeof *rows);
        r = rows ? weft_embed(engine, ids, (int)n, rows, &e) : -1;
    }
    if (r == 0) r = ask(model, engine, ids, (int)n, NULL, 0, &e);
    if (r == 0) {
        for (size_t i = 0; i < n; i += 2) ids[i] = -1 - (int32_t)i; /* every second token as a row of embeddings */
        r = ask(model, engine, ids, (int)n, rows, (int)n, &e);
    }
    if (r != 0) fprintf(stderr, "%s\n", e.message);
    free(rows);
    weft_free(ids);
    if (engine) weft_engine_close(engine);
    weft_model_close(model);
    return r != 0;
}

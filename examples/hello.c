/* One question to a model: hello MODEL. */
#include <stdio.h>
#include <weft.h>

static int show(void *arg, const struct weft_event *event) {
    (void)arg;
    if (event->kind == WEFT_EVENT_TEXT) fwrite(event->text, 1, event->n_bytes, stdout);
    return fflush(stdout); /* anything but 0 would stop the answer */
}

int main(int argc, char **argv) {
    struct weft_error e = {0};
    struct weft_model *model = NULL;
    struct weft_engine *engine = NULL;
    struct weft_request_options request;
    struct weft_answer answer = {0};
    int r = weft_model_open(&model, argc > 1 ? argv[1] : "models/tiny", NULL, &e);
    if (r == 0) r = weft_engine_open(&engine, model, NULL, &e);
    if (r == 0) {
        weft_request_defaults(model, &request);
        request.chat.messages = "[{\"role\": \"user\", \"content\": \"Who are you?\"}]";
        request.chat.thinking = -1;
        request.sampling.temperature = 0;
        request.on_event = show;
        r = weft_generate(&answer, engine, &request, &e);
    }
    if (r == 0) printf("\n(%d tokens, %.0f ms)\n", answer.result.n_tokens, answer.result.predicted_ms);
    else fprintf(stderr, "%s\n", e.message);
    weft_answer_drop(&answer);
    if (engine) weft_engine_close(engine);
    weft_model_close(model);
    return r != 0;
}

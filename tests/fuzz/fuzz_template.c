/* A template of any bytes, rendered for one dialogue: it ends, with a prompt or with a sentence. */
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/mem.h"
#include "text/template.h"

static const char dialogue[] = "{\"messages\": [{\"role\": \"system\", \"content\": \" Be brief. \"}, {\"role\": \"user\", "
                               "\"content\": [{\"type\": \"text\", \"text\": \"h\\u00e9\"}]},"
                               "{\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"r\", \"tool_calls\": "
                               "[{\"function\": {\"name\": \"f\", \"arguments\":"
                               "{\"a\": [1, 2.5, null, true], \"big\": 99999999999999999999}}}]}, {\"role\": \"tool\", "
                               "\"content\": \"ok\"}],"
                               "\"tools\": [{\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}], \"kwargs\": {\"n\": 7, "
                               "\"f\": -2.5, \"l\": [3, 1, 2],"
                               "\"d\": {\"b\": 2, \"a\": 1}, \"s\": \"Hello W\\u00f6rld\", \"add_generation_prompt\": true}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct weft_error e = {0};
    struct template *t;
    if (template_new(&t, (const char *)data, size, "fuzz", &e)) {
        CHECK(e.code < 0 && e.message[0]);
        return 0;
    }
    struct template_input in = TEMPLATE_INPUT;
    in.dialogue = dialogue, in.n_dialogue = sizeof dialogue - 1, in.exact = 1;
    struct buf out;
    char *raised;
    buf_init(&out);
    int code = template_render(t, &in, &out, &raised, &e);
    CHECK(code == 0 || code < 0);
    mem_free(raised);
    buf_drop(&out);
    template_close(t);
    return 0;
}

/* weft: an inference engine for the Qwen3.5 family of hybrid language models. */
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

/* Every function that can fail returns 0 or one of these, and writes one sentence that names the file, tensor or field. */
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
    char message[512];
};

#ifdef __cplusplus
}
#endif
#endif

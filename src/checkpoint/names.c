#include "checkpoint/names.h"

#include <string.h>

static int begins(const char *text, const char *head) { return strncmp(text, head, strlen(head)) == 0; }

/* "head." or the whole of "head": module paths pass here as well as tensor names. */
static int is_part(const char *text, const char *head) {
    size_t n = strlen(head);
    return strncmp(text, head, n) == 0 && (text[n] == '.' || text[n] == 0);
}

static int put(const char *head, const char *rest, enum name_kind kind, char out[NAME_ROOM]) {
    size_t a = strlen(head), b = strlen(rest);
    if (a + b >= NAME_ROOM) return -1;
    memcpy(out, head, a);
    memcpy(out + a, rest, b + 1);
    return (int)kind;
}

int name_canonical(const char *source, int drafter, char out[NAME_ROOM]) {
    static const char *const vision[] = {"visual", "vision_tower", "vision_model"};
    static const char *const text[] = {"embed_tokens", "layers", "norm"};
    static const char *const bare[] = {"fc", "layers", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"};
    const char *s = source;
    while (begins(s, "model.") || begins(s, "language_model.")) s = strchr(s, '.') + 1;
    if (is_part(s, "mtp")) return put("", s, NAME_MTP, out);
    for (int i = 0; i < 3; i++)
        if (is_part(s, vision[i])) return put("visual", s + strlen(vision[i]), NAME_VISION, out);
    if (is_part(s, "lm_head")) return put("", s, NAME_HEAD, out);
    for (int i = 0; drafter && i < 5; i++)
        if (is_part(s, bare[i])) return put("mtp.", s, NAME_MTP, out);
    for (int i = 0; i < 3; i++)
        if (is_part(s, text[i])) return put("", s, NAME_TEXT, out);
    return put("", s, NAME_OTHER, out);
}

const char *name_kind_text(enum name_kind k) {
    static const char *const texts[] = {"text", "head", "MTP", "vision", "other"};
    return texts[k];
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/folder.h"
#include "cli/cli.h"

/* As huggingface_hub finds it. 1 when there is a place. */
static int hub_cache(char *out, size_t n) {
    static const struct { const char *name, *below; } places[] = {
        {"HF_HUB_CACHE", ""}, {"HUGGINGFACE_HUB_CACHE", ""}, {"HF_HOME", "/hub"}, {"XDG_CACHE_HOME", "/huggingface/hub"},
        {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].name);
        if (!value || !*value) continue;
        const char *home = value[0] == '~' && value[1] == '/' ? getenv("HOME") : NULL;
        int length = snprintf(out, n, "%s%s%s", home ? home : "", home ? value + 1 : value, places[i].below);
        return length > 0 && (size_t)length < n;
    }
    return 0;
}

int model_find(char **folder, const char *path_or_name, struct weft_error *e) {
    char cache[4096];
    *folder = NULL;
    return checkpoint_find(folder, path_or_name, hub_cache(cache, sizeof cache) ? cache : NULL, e);
}

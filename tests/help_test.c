#define _GNU_SOURCE
#include "help_test.h"

#include <ftw.h>
#include <unistd.h>

static char paths[4][4096];
static int turn;
static char folder[64];

static const char *say(const char *head, const char *path) {
    char *out = paths[turn++ & 3];
    snprintf(out, sizeof paths[0], "%s/%s", head, path);
    return out;
}

const char *help_shared(const char *path) {
    const char *out = say(SOURCE_DIR "/../shared", path);
    return access(out, R_OK) == 0 ? out : NULL;
}

const char *help_source(const char *path) { return say(SOURCE_DIR, path); }

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *w) {
    (void)s, (void)type, (void)w;
    return remove(path);
}

static void clean_up(void) { nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

const char *help_temp(const char *name) {
    if (!folder[0]) {
        strcpy(folder, "/tmp/weft-test-XXXXXX");
        assert_non_null(mkdtemp(folder));
        atexit(clean_up);
    }
    return say(folder, name);
}

#include <ctype.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/folder.h"

enum { ID_LIMIT = 96 }; /* as huggingface_hub has it, for each of the two parts */

static int is_part(const char *text, size_t n) {
    if (n == 0 || n > ID_LIMIT || text[0] == '.' || text[0] == '-') return 0;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("-_.", text[i])) return 0;
    return 1;
}

/* ORG/NAME or NAME, with @REVISION behind it or not. */
static int is_hub_name(const char *text) {
    size_t n = strcspn(text, "@"), first = strcspn(text, "/@");
    if (text[first] != '/') return is_part(text, first);
    return is_part(text, first) && is_part(text + first + 1, n - first - 1);
}

/* A revision names a file under refs/, or a folder under snapshots/: it may not climb out of them. */
static int is_revision(const char *text) { return text[0] && text[0] != '/' && !strstr(text, "..") && strlen(text) < 256; }

static int has_config(const char *folder) {
    char *path = file_join(folder, "config.json");
    int found = path && file_exists(path);
    mem_free(path);
    return found;
}

/* The snapshot's folder, or NULL when there is none (or no memory: *failed). */
static char *find_snapshot(const char *hub_cache, const char *name, size_t n_name, const char *revision, int *failed) {
    struct buf root, path, commit;
    buf_init(&root), buf_init(&path), buf_init(&commit);
    buf_printf(&root, "%s/models--", hub_cache);
    for (size_t i = 0; i < n_name; i++) buf_add(&root, name[i] == '/' ? "--" : &name[i], name[i] == '/' ? 2 : 1);
    if (!root.failed) buf_printf(&path, "%s/refs/%s", root.data, revision);
    if (!root.failed && !path.failed && file_exists(path.data) && file_read(&commit, path.data, 256, NULL) == 0)
        while (commit.n && isspace((unsigned char)commit.data[commit.n - 1])) commit.data[--commit.n] = 0;
    if (commit.n == 0) buf_clear(&commit), buf_add_text(&commit, revision);
    buf_clear(&path);
    if (!root.failed && !commit.failed) buf_printf(&path, "%s/snapshots/%s", root.data, commit.data);
    *failed = root.failed || commit.failed || path.failed;
    char *folder = *failed ? NULL : buf_take(&path, NULL);
    *failed |= !folder;
    if (folder && (!is_revision(commit.data) || !has_config(folder))) mem_free(folder), folder = NULL;
    buf_drop(&root), buf_drop(&path), buf_drop(&commit);
    return folder;
}

int checkpoint_find(char **folder, const char *path_or_name, const char *hub_cache, struct weft_error *e) {
    const char *at = strchr(path_or_name, '@');
    if (file_is_folder(path_or_name)) {
        *folder = mem_copy_text(path_or_name, strlen(path_or_name));
        return *folder ? 0 : error_memory(e, path_or_name);
    }
    if (file_exists(path_or_name))
        return error_set(e, WEFT_ERROR_INPUT, "%s: a file; a model is named by its folder", path_or_name);
    if (!is_hub_name(path_or_name) || (at && !is_revision(at + 1)))
        return error_set(e, WEFT_ERROR_INPUT, "%s: no such folder, and no name on the Hugging Face Hub", path_or_name);
    size_t n_name = strcspn(path_or_name, "@");
    int failed = 0;
    *folder = hub_cache ? find_snapshot(hub_cache, path_or_name, n_name, at ? at + 1 : "main", &failed) : NULL;
    if (*folder) return 0;
    if (failed) return error_memory(e, path_or_name);
    return error_set(e, WEFT_ERROR_INPUT, "%s: no such folder, and not in the Hugging Face cache%s%s; download it with: hf download %.*s%s%s",
                     path_or_name, hub_cache ? " " : "", hub_cache ? hub_cache : "", (int)n_name, path_or_name,
                     at ? " --revision " : "", at ? at + 1 : "");
}

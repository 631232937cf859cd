#define _GNU_SOURCE
#include "checkpoint/files.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

enum { INDEX_LIMIT = 256 << 20 }; /* bytes */
static const char index_name[] = "model.safetensors.index.json";
static const char *const sidecars[] = {"mtp.safetensors", "optiq_vision.safetensors"};

int checkpoint_note(struct checkpoint *c, struct weft_error *e, const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    char **longer = mem_resize(c->skipped_files, (size_t)(c->n_skipped_files + 1) * sizeof *longer);
    if (longer) c->skipped_files = longer;
    char *copy = longer ? mem_copy_text(line, strlen(line)) : NULL;
    if (!copy) return error_memory(e, c->folder);
    c->skipped_files[c->n_skipped_files++] = copy;
    return 0;
}

static int open_one(struct checkpoint *c, const char *name, int sidecar, struct weft_error *e) {
    struct checkpoint_files *f = c->files;
    if (f->n == f->room) {
        int room = f->room ? 2 * f->room : 16;
        struct file_tensors *list = mem_resize(f->list, (size_t)room * sizeof *list);
        if (!list) return error_memory(e, c->folder);
        f->list = list, f->room = room;
    }
    char *path = file_join(c->folder, name);
    if (!path) return error_memory(e, c->folder);
    f->list[f->n] = (struct file_tensors){NULL, sidecar};
    int code = safetensors_open(&f->list[f->n].tensors, path, e);
    if (!code) f->n++;
    mem_free(path);
    return code;
}

static const struct safetensors *opened(const struct checkpoint *c, const char *name) {
    for (int i = 0; i < c->files->n; i++) {
        const char *slash = strrchr(safetensors_path(c->files->list[i].tensors), '/');
        if (strcmp(slash + 1, name) == 0) return c->files->list[i].tensors;
    }
    return NULL;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int is_shard_name(const char *name) {
    size_t n = strlen(name), tail = strlen(".safetensors");
    return n >= tail && strncmp(name, "model", 5) == 0 && strcmp(name + n - tail, ".safetensors") == 0;
}

/* The folder's model*.safetensors, sorted, in the arena. */
static int list_shards(struct checkpoint *c, char ***out, int *n_out, struct weft_error *e) {
    DIR *d = opendir(c->folder);
    if (!d) return error_set(e, WEFT_ERROR_INPUT, "%s: %s", c->folder, strerror(errno));
    char **names = NULL;
    int n = 0, code = 0;
    for (struct dirent *entry; !code && (entry = readdir(d));) {
        if (!is_shard_name(entry->d_name)) continue;
        char **longer = mem_resize(names, (size_t)(n + 1) * sizeof *names);
        char *copy = longer ? arena_copy_text(&c->files->arena, entry->d_name, strlen(entry->d_name)) : NULL;
        if (longer) names = longer;
        if (copy) names[n++] = copy;
        else code = error_memory(e, c->folder);
    }
    closedir(d);
    if (code) return mem_free(names), code;
    if (n) qsort(names, (size_t)n, sizeof *names, by_text);
    *out = names, *n_out = n;
    return 0;
}

/* Every file that the index names is opened, and holds every tensor that the index says it does. */
static int satisfy_index(struct checkpoint *c, const json_t *map, const char *path, struct weft_error *e) {
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)map, name, v) {
        const char *file = json_string_value(v);
        if (!file || !file[0] || strchr(file, '/') || strcmp(file, "..") == 0)
            return error_set(e, WEFT_ERROR_INPUT, "%s: the entry of \"%s\" names no file of this folder", path, name);
        if (!opened(c, file)) {
            char *shard = file_join(c->folder, file);
            int there = shard && file_exists(shard), no_memory = !shard;
            mem_free(shard);
            if (no_memory) return error_memory(e, path);
            if (!there)
                return error_set(e, WEFT_ERROR_INPUT, "%s: the shard \"%s\" that it names is not in the folder (download incomplete?)", path,
                                 file);
            int code = open_one(c, file, 0, e);
            if (code) return code;
        }
        if (!safetensors_find(opened(c, file), name))
            return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is not in \"%s\", where the index has it", path, name, file);
    }
    return 0;
}

static int read_index(struct checkpoint *c, const char *path, struct weft_error *e) {
    json_t *index = NULL;
    int code = json_read_file(&index, path, INDEX_LIMIT, e);
    if (code) return code;
    const json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        code = error_set(e, WEFT_ERROR_INPUT, "%s: \"weight_map\" is no object with entries", path);
    if (!code) code = satisfy_index(c, map, path, e);
    json_decref(index);
    return code;
}

static int has_kind(const struct checkpoint *c, enum name_kind kind) {
    char name[NAME_ROOM];
    for (int f = 0; f < c->files->n; f++) {
        const struct safetensors *s = c->files->list[f].tensors;
        for (int i = 0; i < safetensors_count(s); i++)
            if (name_canonical(safetensors_at(s, i)->name, 0, name) == (int)kind) return 1;
    }
    return 0;
}

/* A sidecar fills in what the shards lack; beside shards that have it, it is listed as skipped. */
static int open_sidecars(struct checkpoint *c, struct weft_error *e) {
    static const enum name_kind kinds[] = {NAME_MTP, NAME_VISION};
    for (int i = 0; i < 2; i++) {
        char *path = file_join(c->folder, sidecars[i]);
        if (!path) return error_memory(e, c->folder);
        int there = file_exists(path);
        mem_free(path);
        if (!there || opened(c, sidecars[i])) continue;
        int code = has_kind(c, kinds[i]) ? checkpoint_note(c, e, "%s: the model files hold its part already", sidecars[i])
                                         : open_one(c, sidecars[i], 1, e);
        if (code) return code;
    }
    return 0;
}

int checkpoint_open_files(struct checkpoint *c, struct weft_error *e) {
    char *path = file_join(c->folder, index_name);
    if (!path) return error_memory(e, c->folder);
    int indexed = file_exists(path), n = 0;
    char **names = NULL;
    int code = indexed ? read_index(c, path, e) : 0;
    mem_free(path);
    if (!code) code = list_shards(c, &names, &n, e);
    for (int i = 0; i < n && !code; i++) {
        if (!indexed) code = open_one(c, names[i], 0, e);
        else if (!opened(c, names[i])) code = checkpoint_note(c, e, "%s: not in the index", names[i]);
    }
    mem_free(names);
    if (!code && c->files->n == 0)
        code = error_set(e, WEFT_ERROR_INPUT, "%s: no model folder: it holds no model*.safetensors", c->folder);
    return code ? code : open_sidecars(c, e);
}

void checkpoint_close_files(struct checkpoint *c) {
    struct checkpoint_files *f = c->files;
    if (!f) return;
    for (int i = 0; i < f->n; i++) safetensors_close(f->list[i].tensors);
    for (int i = 0; i < c->n_skipped_files; i++) mem_free(c->skipped_files[i]);
    mem_free(c->skipped_files);
    json_decref(f->claims);
    arena_drop(&f->arena);
    mem_free(f->list);
    mem_free(f);
    c->files = NULL;
}

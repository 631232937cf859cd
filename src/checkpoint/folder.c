#include "checkpoint/folder.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/files.h"

enum { CONFIG_LIMIT = 64 << 20 }; /* bytes */

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* Bare names belong to the MTP head where files have `fc.weight` and no embedding. */
struct signs { int fc, embedding; };

static void look_for_signs(const struct safetensors *s, struct signs *found) {
    char name[NAME_ROOM];
    for (int i = 0; i < safetensors_count(s); i++) {
        if (name_canonical(safetensors_at(s, i)->name, 0, name) < 0) continue;
        found->embedding |= strcmp(name, "embed_tokens.weight") == 0;
        found->fc |= strcmp(name, "fc.weight") == 0;
    }
}

static int add_file(struct checkpoint *c, const struct safetensors *s, int drafter, struct weft_error *e) {
    for (int i = 0; i < safetensors_count(s); i++) {
        const struct tensor *t = safetensors_at(s, i);
        char name[NAME_ROOM];
        int kind = name_canonical(t->name, drafter, name);
        if (kind < 0) return error_set(e, WEFT_ERROR_INPUT, "%s: a tensor's name is longer than %d bytes", t->file, NAME_ROOM - 1);
        struct entry *entry = &c->entries[c->n_entries++];
        *entry = (struct entry){.kind = (enum name_kind)kind, .tensor = t};
        entry->name = arena_copy_text(&c->files->arena, name, strlen(name));
        if (!entry->name) return error_memory(e, c->folder);
    }
    return 0;
}

static int add_entries(struct checkpoint *c, struct weft_error *e) {
    struct checkpoint_files *f = c->files;
    struct signs shards = {0};
    size_t n = 0;
    for (int i = 0; i < f->n; i++) {
        n += (size_t)safetensors_count(f->list[i].tensors);
        if (!f->list[i].sidecar) look_for_signs(f->list[i].tensors, &shards);
    }
    c->config.drafter |= shards.fc && !shards.embedding;
    c->entries = arena_new(&f->arena, n, sizeof *c->entries);
    int code = c->entries ? 0 : error_memory(e, c->folder);
    for (int i = 0; i < f->n && !code; i++) {
        struct signs own = {0};
        if (f->list[i].sidecar) look_for_signs(f->list[i].tensors, &own);
        code = add_file(c, f->list[i].tensors, f->list[i].sidecar ? own.fc && !own.embedding : c->config.drafter, e);
    }
    return code;
}

/* Leaves one of several entries with a name, if all have the same bytes. */
static int merge_doubles(struct checkpoint *c, struct weft_error *e) {
    if (c->n_entries) qsort(c->entries, (size_t)c->n_entries, sizeof *c->entries, by_name);
    int kept = 0;
    for (int i = 0; i < c->n_entries; i++) {
        const struct tensor *t = c->entries[i].tensor, *u = kept ? c->entries[kept - 1].tensor : NULL;
        if (!u || strcmp(c->entries[kept - 1].name, c->entries[i].name) != 0) {
            c->entries[kept++] = c->entries[i];
            continue;
        }
        int same = t->dtype == u->dtype && tensor_is_shape(t, u->n_dims, u->shape) && memcmp(t->data, u->data, t->n_bytes) == 0;
        if (!same)
            return error_set(e, WEFT_ERROR_INPUT, "tensor \"%s\" of %s and \"%s\" of %s are the same one twice, with different contents",
                             u->name, u->file, t->name, t->file);
        int code = checkpoint_note(c, e, "\"%s\" of %s: the same bytes as \"%s\"", t->name, t->file, u->name);
        if (code) return code;
    }
    c->n_entries = kept;
    return 0;
}

static int read_configs(struct checkpoint *c, const char *config_path, struct weft_error *e) {
    if (!file_exists(config_path))
        return error_set(e, WEFT_ERROR_INPUT, "%s: no model folder: it has no config.json", c->folder);
    int code = json_read_file(&c->config_json, config_path, CONFIG_LIMIT, e);
    if (!code) code = config_read(&c->config, c->config_json, config_path, e);
    if (code) return code;
    char *path = file_join(c->folder, "generation_config.json");
    if (!path) return error_memory(e, c->folder);
    struct weft_error why = {0};
    if (file_exists(path) && json_read_file(&c->generation_json, path, CONFIG_LIMIT, &why)) {
        if (why.code == WEFT_ERROR_MEMORY) code = error_memory(e, path);
        else log_write(LOG_WARNING, "%s; the file is ignored", why.message);
    }
    mem_free(path);
    generation_config_read(&c->generation, c->generation_json, c->config.vocab);
    if (c->generation.n_ends) {
        c->config.n_ends = c->generation.n_ends;
        memcpy(c->config.ends, c->generation.ends, sizeof c->config.ends);
    }
    return code;
}

static int fill(struct checkpoint *c, struct weft_error *e) {
    if (!file_is_folder(c->folder)) return error_set(e, WEFT_ERROR_INPUT, "%s: no such folder", c->folder);
    char *config_path = file_join(c->folder, "config.json");
    if (!config_path) return error_memory(e, c->folder);
    int code = read_configs(c, config_path, e);
    if (!code) code = checkpoint_open_files(c, e);
    if (!code) code = add_entries(c, e);
    if (!code) code = merge_doubles(c, e);
    if (!code) code = checkpoint_read_claims(c, config_path, e);
    mem_free(config_path);
    return code;
}

int checkpoint_open(struct checkpoint **out, const char *folder, struct weft_error *e) {
    struct checkpoint *c = mem_new(1, sizeof *c);
    if (!c) return error_memory(e, folder);
    c->files = mem_new(1, sizeof *c->files);
    c->folder = mem_copy_text(folder, strlen(folder));
    int code = c->files && c->folder ? fill(c, e) : error_memory(e, folder);
    if (code) return checkpoint_close(c), code;
    *out = c;
    return 0;
}

void checkpoint_close(struct checkpoint *c) {
    if (!c) return;
    checkpoint_close_files(c);
    json_decref(c->config_json);
    json_decref(c->generation_json);
    mem_free(c->folder);
    mem_free(c);
}

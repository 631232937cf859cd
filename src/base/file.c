#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static const uint8_t nothing[1];

int file_open_map(struct file_map *m, const char *path, struct weft_error *e) {
    *m = (struct file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set(e, WEFT_ERROR_INPUT, "%s: %s", path, strerror(errno));
    struct stat s;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        close(fd);
        return error_set(e, WEFT_ERROR_INPUT, "%s: not a regular file", path);
    }
    m->n_bytes = (size_t)s.st_size, m->data = nothing;
    if (s.st_size > 0) {
        void *p = mmap(NULL, m->n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            int why = errno;
            close(fd);
            *m = (struct file_map){0};
            return error_set(e, WEFT_ERROR_INPUT, "%s: cannot be mapped: %s", path, strerror(why));
        }
        m->data = p;
    }
    close(fd);
    return 0;
}

void file_close_map(struct file_map *m) {
    if (m->data && m->data != nothing) munmap((void *)m->data, m->n_bytes);
    *m = (struct file_map){0};
}

int file_read(struct buf *out, const char *path, size_t limit_bytes, struct weft_error *e) {
    int standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rb");
    if (!f) return error_set(e, WEFT_ERROR_INPUT, "%s: %s", path, strerror(errno));
    char chunk[65536];
    size_t n, total = 0;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0 && (total += n) <= limit_bytes) buf_add(out, chunk, n);
    int bad = ferror(f) ? errno : 0;
    if (!standard) fclose(f);
    if (bad) return error_set(e, WEFT_ERROR_INPUT, "%s: %s", path, strerror(bad));
    if (total > limit_bytes) return error_set(e, WEFT_ERROR_INPUT, "%s: larger than the limit of %zu bytes", path, limit_bytes);
    buf_add(out, "", 0);
    return out->failed ? error_memory(e, path) : 0;
}

/* A device or a pipe: written as it is, since renaming would put a file in its place. */
static int is_special(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode);
}

int file_open_writer(struct file_writer *w, const char *path, struct weft_error *e) {
    *w = (struct file_writer){0};
    int special = is_special(path);
    struct buf part;
    buf_init(&part);
    if (special) buf_add_text(&part, path);
    else buf_printf(&part, "%s.part-%ld", path, (long)getpid());
    w->part = buf_take(&part, NULL), w->path = mem_copy_text(path, strlen(path));
    if (w->part && w->path && (w->f = fopen(w->part, "wb"))) return 0;
    int code = w->part && w->path ? error_set(e, WEFT_ERROR_INPUT, "%s: cannot be written: %s", path, strerror(errno))
                                  : error_memory(e, path);
    mem_free(w->part), mem_free(w->path);
    *w = (struct file_writer){0};
    return code;
}

int file_write(struct file_writer *w, const void *bytes, size_t n, struct weft_error *e) {
    if (n == 0 || fwrite(bytes, 1, n, w->f) == n) return 0;
    return error_set(e, WEFT_ERROR_INPUT, "%s: cannot be written: %s", w->path, strerror(errno));
}

int file_close_writer(struct file_writer *w, int commit, struct weft_error *e) {
    if (!w->f) return 0;
    int code = 0;
    if (fflush(w->f) != 0 || ferror(w->f)) code = errno ? errno : EIO;
    if (fclose(w->f) != 0 && !code) code = errno;
    int renames = strcmp(w->part, w->path) != 0;
    if (renames && commit && !code && rename(w->part, w->path) != 0) code = errno;
    if (renames && (!commit || code)) unlink(w->part);
    if (code) error_set(e, WEFT_ERROR_INPUT, "%s: cannot be written: %s", w->path, strerror(code));
    mem_free(w->part), mem_free(w->path);
    *w = (struct file_writer){0};
    return commit && code ? WEFT_ERROR_INPUT : 0;
}

int file_exists(const char *path) { return access(path, F_OK) == 0; }

int file_is_folder(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

char *file_join(const char *folder, const char *name) {
    struct buf b;
    buf_init(&b);
    buf_printf(&b, "%s/%s", folder, name);
    return buf_take(&b, NULL);
}

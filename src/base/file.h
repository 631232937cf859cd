/* Files: mapped, read whole, written so that a failed write leaves the old file as it was. */
#ifndef BASE_FILE_H
#define BASE_FILE_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/error.h"

/* A file mapped read-only. `data` is never NULL after success, even for an empty file. */
struct file_map { const uint8_t *data; size_t n_bytes; };
int file_open_map(struct file_map *m, const char *path, struct weft_error *e);
void file_close_map(struct file_map *m);

/* Reads a whole file, or standard input for "-"; at most limit_bytes. */
int file_read(struct buf *out, const char *path, size_t limit_bytes, struct weft_error *e);

/* Writes PATH.part-PID, then renames it; close with commit = 0 removes it (a device or pipe is written directly). Every error of write, flush and close is reported. */
struct file_writer { FILE *f; char *path, *part; };
int file_open_writer(struct file_writer *w, const char *path, struct weft_error *e);
int file_write(struct file_writer *w, const void *bytes, size_t n, struct weft_error *e);
int file_close_writer(struct file_writer *w, int commit, struct weft_error *e);

int file_exists(const char *path);
int file_is_folder(const char *path);
/* "folder/name" in memory of the caller (mem_free), NULL when there is none. */
char *file_join(const char *folder, const char *name);
#endif

/* Private to the folder: which files make up a checkpoint, opened. */
#ifndef CHECKPOINT_FILES_H
#define CHECKPOINT_FILES_H
#include "base/mem.h"
#include "checkpoint/folder.h"

struct file_tensors { struct safetensors *tensors; int sidecar; };
struct checkpoint_files {
    struct arena arena;    /* names and sentences */
    int n, room;
    struct file_tensors *list;
    json_t *claims;        /* quantization entries by canonical module path */
    const json_t *global;  /* the block that they stand in, borrowed from the config; NULL when there is none */
};

/* Opens the shards that the index names (it must be satisfied), or every model*.safetensors without one, then the sidecars. */
int checkpoint_open_files(struct checkpoint *c, struct weft_error *e);
void checkpoint_close_files(struct checkpoint *c);
/* Adds a line to c->skipped_files. */
int checkpoint_note(struct checkpoint *c, struct weft_error *e, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Reads the quantization block into files->claims. */
int checkpoint_read_claims(struct checkpoint *c, const char *config_path, struct weft_error *e);
#endif

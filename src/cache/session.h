/* Sequences on disk: weft's own files, which go on bit-identically, and MLX prompt caches. Both are safetensors files and are
 * written beside the old file and renamed: a failure leaves the old one. */
#ifndef CACHE_SESSION_H
#define CACHE_SESSION_H
#include "cache/cache.h"

/* What a session belongs to. Saved with it; loading under anything else is refused. */
struct session_identity {
    uint64_t model;            /* model_fingerprint */
    const char *model_name;    /* for sentences; may be NULL */
    const char *arithmetic;    /* backend's */
    const char *adapters;      /* "shout=1,short=0.5" for sentences, "" for none */
};

/* Pending rows are folded first. */
int session_save(struct sequence *s, const char *path, const struct session_identity *id, struct weft_error *e);
/* sequence_adapters of the new sequence is set to `adapters`, which must be the saved one's. */
int session_load(struct sequence **out, struct cache *c, const char *path, const struct session_identity *id, uint64_t adapters,
                 struct weft_error *e);

/* MLX prompt caches hold no tokens (ours put them into the metadata key "tokens"), no hidden row, no MTP rows, and the
 * convolution's inputs in bf16: going on from one is as near as bf16 activations are. */
struct mlx_layout {
    const uint8_t *is_attention; /* [n_layers], MTP layers left out */
    int n_layers;
    const char *model;           /* for the metadata; may be NULL */
};
int session_save_mlx(struct sequence *s, const char *path, const struct mlx_layout *l, struct weft_error *e);
/* *n_tokens is 0 when the file does not say which tokens its rows are: then they equal no others. */
int session_load_mlx(struct sequence **out, struct cache *c, const char *path, const struct mlx_layout *l, int *n_tokens,
                     struct weft_error *e);
/* 1 when the name ends in ".safetensors": an MLX prompt cache. */
int session_is_mlx(const char *path);
#endif

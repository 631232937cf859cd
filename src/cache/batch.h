/* A step: groups, each one sequence's share, packed. The contract between engine, cache and model:
 *
 *     fill groups -> cache_begin -> model_forward -> read logits -> cache_commit (or cache_abort after a failure)
 *
 * Invariants
 * 1. cache_begin reserves everything the step needs or changes nothing.
 * 2. Between begin and commit a sequence is in this batch alone, and in it once.
 * 3. Packed row numbers ascend with the groups: group g has rows [row0, row0 + n_rows). */
#ifndef CACHE_BATCH_H
#define CACHE_BATCH_H
#include <stdint.h>

#include "backend/ops.h"

struct sequence;
struct snapshot;
struct adapter_set; /* lora/ */

struct group {
    struct sequence *seq;
    int n_rows;
    const int32_t *tokens;       /* [n_rows]; -1 - j: row j of `embeddings` */
    const int64_t *keys;         /* [n_rows]: identity of embedding rows (hash of the medium and the row), read where the token is
                                    negative; NULL: such rows equal no other row */
    const float *embeddings;     /* [.][hidden], host memory, or NULL */
    const int32_t *positions;    /* [n_axes][n_rows], or NULL: one after the sequence's last, on every axis */
    int n_axes;                  /* 1 or 3 when positions are given */
    int n_logits;                /* logits of the last n rows */
    int undo;                    /* commit may keep any prefix; else all rows or none */
    const int *snapshot_rows;    /* state wanted after this many rows of the group (1..n_rows), ascending; or NULL */
    int n_snapshots;
    int want_hidden;             /* hidden rows after the final norm, of every row */
    int want_taps;               /* the batch's taps, of every row */
    const struct adapter_set *adapters; /* NULL: the base model */
    const float *hidden_in;      /* MTP steps: [n_rows][hidden], the main model's final hidden rows (or the head's own) */

    /* Filled by cache_begin. */
    int row0;
    struct snapshot **snapshots; /* [n_snapshots], each owned by the caller after commit (tree_store or snapshot_free); NULL where
                                    the budget had no room or commit did not keep the row. The array is the cache's, until the
                                    next begin */
};

struct batch {
    struct group *groups; int n_groups;
    int mtp;                     /* rows of the MTP head: tokens are those that follow the hidden rows */
    const int *taps; int n_taps; /* layers whose residual output is wanted, ascending */

    int n_rows;                  /* filled by cache_begin */
    /* Filled by model_forward; valid until its next call. Row order is packed order. */
    float *logits;               /* [sum of n_logits][vocab] */
    float *hidden;               /* [rows of groups with want_hidden][hidden]; in MTP steps after mtp.norm */
    float **tap_rows;            /* [n_taps] of [rows of groups with want_taps][hidden] */
};
#endif

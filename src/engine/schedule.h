/* Which requests have how many rows in the next step. Pure: no model, no clock, no memory.
 *
 * Invariants
 * 1. Never more than the limits; every step has at least one row when something is ready.
 * 2. Requests with one pending row (decoding) come before prompts, drafts after both: a draft never takes a row that something
 *    certain could have had.
 * 3. Prompts share what is left in equal parts, short ones whole first; whoever got nothing is first in the next step.
 * 4. Nothing here may change any answer, only its time. */
#ifndef ENGINE_SCHEDULE_H
#define ENGINE_SCHEDULE_H

struct schedule_limits {
    int max_rows, max_groups, max_logits;
    int prefill_chunk;          /* prompt rows of a step, all prompts together */
    long long max_pairs;        /* rows of a prompt chunk times the rows before its end: bounds the attention part of a step */
};
struct schedule_item {
    int context;                /* rows already in the sequence */
    int pending;                /* known tokens not yet run, > 0 */
    int drafts;                 /* drafts wanted behind them when pending == 1 */
    int n_rows, n_drafts;       /* out: pending rows and drafts of this step; 0 rows: not this time */
};
struct schedule_turn { unsigned decoding, prompts; }; /* who comes first; starts at 0, kept between calls */
/* Returns rows in all. */
int schedule_plan(struct schedule_item *items, int n, const struct schedule_limits *limits, struct schedule_turn *turn);
/* Most rows of a chunk that starts after `context` rows. */
int schedule_chunk(const struct schedule_limits *limits, int context);
#endif

#include "engine/schedule.h"

static int smaller(int a, int b) { return a < b ? a : b; }

int schedule_chunk(const struct schedule_limits *limits, int context) {
    long long chunk = limits->prefill_chunk;
    if (limits->max_pairs > 0 && context > 0 && chunk * context > limits->max_pairs) chunk = limits->max_pairs / context;
    /* whole key blocks, so that a long prompt's chunks end where blocks do */
    if (chunk > 64) chunk = chunk / 64 * 64;
    if (chunk < 16) chunk = 16;
    return (int)(chunk < limits->max_rows ? chunk : limits->max_rows);
}

/* What is left of a step. */
struct room { int rows, groups, logits, prompt_rows; };

/* Prompt rows in equal parts: as long as somebody wants less than an equal part, he gets all he wants and the parts grow. */
static void share_prompts(struct schedule_item *items, int n, const struct schedule_limits *limits, struct room *room,
                          unsigned first) {
    int n_open = 0;
    for (int i = 0; i < n; i++) n_open += items[i].pending > 1;
    n_open = smaller(n_open, smaller(room->groups, smaller(room->logits, room->prompt_rows)));
    /* the first n_open in turn take part; a part is at least a row */
    int left = n_open;
    for (int k = 0; k < n && left; k++) {
        struct schedule_item *it = &items[(first + (unsigned)k) % (unsigned)n];
        if (it->pending > 1) it->n_rows = -1, left--;
    }
    int n_left = n_open;
    for (int changed = 1; changed && n_left;) {
        changed = 0;
        int part = room->prompt_rows / n_left;
        for (int k = 0; k < n; k++) {
            struct schedule_item *it = &items[(first + (unsigned)k) % (unsigned)n];
            if (it->n_rows != -1) continue;
            int want = smaller(it->pending, schedule_chunk(limits, it->context));
            if (want > part) continue;
            it->n_rows = want, room->prompt_rows -= want, n_left--, changed = 1;
        }
    }
    for (int k = 0; k < n && n_left; k++) {
        struct schedule_item *it = &items[(first + (unsigned)k) % (unsigned)n];
        if (it->n_rows != -1) continue;
        it->n_rows = room->prompt_rows / n_left;
        room->prompt_rows -= it->n_rows, n_left--;
    }
}

int schedule_plan(struct schedule_item *items, int n, const struct schedule_limits *limits, unsigned *turn) {
    struct room room = {limits->max_rows, limits->max_groups, limits->max_logits, 0};
    if (n == 0) return 0;
    unsigned first = *turn % (unsigned)n, next = first;
    int full = 0, n_prompts = 0;
    for (int i = 0; i < n; i++) items[i].n_rows = items[i].n_drafts = 0, n_prompts += items[i].pending > 1;
    /* decoding ones; with prompts waiting they leave them a row and a group */
    int reserve = n_prompts > 0;
    for (int k = 0; k < n; k++) {
        struct schedule_item *it = &items[(first + (unsigned)k) % (unsigned)n];
        if (it->pending != 1) continue;
        if (room.rows <= reserve || room.groups <= reserve || room.logits <= reserve) {
            if (!full) next = first + (unsigned)k, full = 1;
            continue;
        }
        it->n_rows = 1, room.rows--, room.groups--, room.logits--;
    }
    room.prompt_rows = smaller(room.rows, limits->prefill_chunk);
    int before = room.prompt_rows;
    if (n_prompts) share_prompts(items, n, limits, &room, first);
    room.rows -= before - room.prompt_rows;
    for (int i = 0; i < n; i++)
        if (items[i].pending > 1 && items[i].n_rows == items[i].pending) room.logits--;
    /* drafts: a row each in turn, so that a short step is shared */
    for (int depth = 1, given = 1; given; depth++) {
        given = 0;
        for (int i = 0; i < n && room.rows > 0 && room.logits > 0; i++)
            if (items[i].pending == 1 && items[i].n_rows == 1 && items[i].drafts >= depth)
                items[i].n_drafts++, room.rows--, room.logits--, given = 1;
    }
    *turn = full ? next : first + 1;
    int rows = 0;
    for (int i = 0; i < n; i++) rows += items[i].n_rows + items[i].n_drafts;
    return rows;
}

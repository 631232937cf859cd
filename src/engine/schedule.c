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

/* Prompt rows in equal parts: as long as somebody wants less than an equal part, he gets all he wants and the parts grow.
 * Returns where the next step's turn begins. */
static unsigned share_prompts(struct schedule_item *items, int n, const struct schedule_limits *limits, struct room *room,
                              unsigned first) {
    int n_open = 0;
    for (int i = 0; i < n; i++) n_open += items[i].pending > 1;
    n_open = smaller(n_open, smaller(room->groups, smaller(room->logits, room->prompt_rows)));
    /* the first n_open in turn take part; a part is at least a row */
    int left = n_open;
    unsigned next = first + 1;
    for (int k = 0; k < n && left; k++) {
        struct schedule_item *it = &items[(first + (unsigned)k) % (unsigned)n];
        if (it->pending > 1) it->n_rows = -1, left--, next = first + (unsigned)k + 1;
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
    return next;
}

/* A row each for those that decode, as far as the room goes. Returns where the next step's turn begins. */
static unsigned place_decoding(struct schedule_item *items, int n, struct room *room, int spare, unsigned first) {
    unsigned next = first + 1;
    int full = 0;
    for (int k = 0; k < n; k++) {
        struct schedule_item *it = &items[(first + (unsigned)k) % (unsigned)n];
        if (it->pending != 1) continue;
        if (room->rows <= spare || room->groups <= spare || room->logits <= spare) {
            if (!full) next = first + (unsigned)k, full = 1;
            continue;
        }
        it->n_rows = 1, room->rows--, room->groups--, room->logits--;
    }
    return next;
}

/* A row in turn for each, so that a short step is shared. */
static void place_drafts(struct schedule_item *items, int n, struct room *room) {
    for (int depth = 1, given = 1; given; depth++) {
        given = 0;
        for (int i = 0; i < n && room->rows > 0 && room->logits > 0; i++)
            if (items[i].n_rows == 1 && items[i].pending == 1 && items[i].drafts >= depth)
                items[i].n_drafts++, room->rows--, room->logits--, given = 1;
    }
}

int schedule_plan(struct schedule_item *items, int n, const struct schedule_limits *limits, struct schedule_turn *turn) {
    struct room room = {limits->max_rows, limits->max_groups, limits->max_logits, 0};
    if (n == 0) return 0;
    int n_prompts = 0;
    for (int i = 0; i < n; i++) items[i].n_rows = items[i].n_drafts = 0, n_prompts += items[i].pending > 1;
    /* with prompts waiting the decoding ones leave them a row and a group */
    turn->decoding = place_decoding(items, n, &room, n_prompts > 0, turn->decoding % (unsigned)n);
    room.prompt_rows = smaller(room.rows, limits->prefill_chunk);
    room.rows -= room.prompt_rows;
    if (n_prompts) turn->prompts = share_prompts(items, n, limits, &room, turn->prompts % (unsigned)n);
    room.rows += room.prompt_rows;
    for (int i = 0; i < n; i++)
        if (items[i].pending > 1 && items[i].n_rows == items[i].pending) room.logits--;
    place_drafts(items, n, &room);
    int rows = 0;
    for (int i = 0; i < n; i++) rows += items[i].n_rows + items[i].n_drafts;
    return rows;
}

/* The template language of chat templates: Jinja as transformers sets it up (docs/templates.md says what that means).
 *
 * Invariants
 * 1. A compiled template is never written again: any number of threads may render it.
 * 2. A render owns one arena; every value made while rendering lives there and dies with it. Values that came in (messages,
 *    constants of the template) are borrowed and never changed: no method that changes a list or an object is reachable.
 * 3. Work is counted: steps, bytes and nesting each have a limit, so that any template ends.
 * 4. Inside a render a fault leaves by longjmp to its one setjmp, which is safe because of 2: nothing else is held. */
#ifndef TEXT_JINJA_H
#define TEXT_JINJA_H
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/error.h"
#include "base/mem.h"

/* ---- values -------------------------------------------------------------------------------------------------------- */

enum value_kind {
    VALUE_MISSING, /* no value at all: an argument that was not given. Never seen by a template */
    VALUE_UNDEFINED, VALUE_NONE, VALUE_BOOL, VALUE_INT, VALUE_BIG, /* BIG: an integer beyond 64 bits, kept as text */
    VALUE_FLOAT, VALUE_STRING, VALUE_BYTES, VALUE_LIST, VALUE_TUPLE, VALUE_DICT, VALUE_RANGE, VALUE_VIEW, VALUE_GENERATOR,
    VALUE_NAMESPACE, VALUE_MACRO, VALUE_LOOP, VALUE_FUNCTION, VALUE_METHOD, VALUE_CYCLER, VALUE_JOINER, VALUE_SELF,
};

struct value {
    enum value_kind kind;
    union {
        int64_t i; /* INT, and BOOL as 0 or 1 */
        double f;
        const struct text *text; /* STRING, BYTES, BIG (decimal digits) */
        const struct list *list; /* LIST, TUPLE */
        const struct dict *dict;
        const struct range *range;
        const struct view *view;
        struct generator *generator;
        struct space *space;
        const struct macro *macro;
        struct loop *loop;
        const struct function *function;
        const struct method *method;
        struct cycler *cycler;
        const struct undefined *undefined;
    } as;
};

/* UTF-8 in which a surrogate, if a template writes one, takes three bytes. `grow` is the buffer at whose end the text lies. */
struct text { const char *bytes; size_t n; int64_t n_chars; int markup; struct grow *grow; };
struct list { struct value *at; size_t n; struct grow *grow; int grouped; }; /* grouped: a (grouper, list) of groupby */
struct grow { size_t used, room; }; /* elements: bytes of a text, values of a list */
struct pair { struct value key, value; uint64_t hash; };
struct dict { struct pair *at; size_t n, room; uint32_t *slots; size_t n_slots; };
struct range { int64_t start, stop, step, n; };
struct view { const char *name; const struct list *items; }; /* dict_items and the like */
struct space { struct dict names; };
struct cycler { struct list items; size_t at; };
/* What was asked of what. `said` overrides the sentence; `security` says that it was withheld. */
struct undefined { const char *said, *of; struct value name; int security; };

struct render;
struct call { struct value *args; size_t n_args; struct pair *named; size_t n_named; };
/* A function, filter, test or method in C. `spec` names its parameters: "a b? c?" (? may be left out, a leading / forbids
 * names, NULL takes the call as it is); `a` are the bound arguments, VALUE_MISSING where left out. */
typedef struct value builtin_fn(struct render *r, struct value self, const struct value *a, const struct call *c);
struct function { const char *name, *spec; builtin_fn *fn; };
struct method { struct value self; const struct function *function; };
enum { MAX_PARAMETERS = 6 };

/* Something to be walked once. A generator makes its items as they are asked for. */
struct walk { struct render *r; struct value over; size_t at; };
struct generator {
    int (*next)(struct render *, struct generator *, struct value *);
    struct value over, path, otherwise; /* what is walked, the attribute of each item, what stands for an absent one */
    const struct function *function;
    struct call call;
    int started, done, negate;
    struct walk source;
};

#define NONE ((struct value){.kind = VALUE_NONE})
#define MISSING ((struct value){.kind = VALUE_MISSING})
static inline struct value value_bool(int b) { return (struct value){.kind = VALUE_BOOL, .as.i = b != 0}; }
static inline struct value value_int(int64_t i) { return (struct value){.kind = VALUE_INT, .as.i = i}; }
static inline struct value value_float(double f) { return (struct value){.kind = VALUE_FLOAT, .as.f = f}; }
static inline int value_is_text(struct value v) { return v.kind == VALUE_STRING; }
static inline int value_is_whole(struct value v) { return v.kind == VALUE_INT || v.kind == VALUE_BOOL; }
static inline int value_is_number(struct value v) { return value_is_whole(v) || v.kind == VALUE_FLOAT || v.kind == VALUE_BIG; }

/* ---- a render (or a compilation) ------------------------------------------------------------------------------------- */

enum jinja_fault {
    FAULT_NONE, FAULT_SYNTAX, FAULT_UNDEFINED, FAULT_SECURITY, FAULT_TYPE, FAULT_VALUE, FAULT_OVERFLOW, FAULT_ZERO, FAULT_KEY,
    FAULT_RUNTIME, FAULT_FILTER, FAULT_RAISED, FAULT_LIMIT, FAULT_MEMORY, FAULT_SUPPORT,
};

struct jinja_limits { int64_t steps; size_t bytes; int depth; };
/* For a prompt. Twenty million steps are half a second of one core; the bundled template needs under one million for four
 * thousand messages, one that walks over all messages for every message about ten million for fifteen hundred. */
#define JINJA_PROMPT_LIMITS {.steps = 20000000, .bytes = 256 << 20, .depth = 800}

/* Text being written: by the template, or inside a macro or block that is caught. */
struct out { char *bytes; size_t n, room; };

struct render {
    struct arena arena;
    struct jinja_limits left; /* what may still be spent */
    struct out *out;
    struct scope *scope, *root;
    const struct jinja *template;
    int autoescape;
    struct tm now;
    int now_us;
    struct value block; /* the text that a filter block or a set block has caught */
    int line;           /* of the template, for messages */
    enum jinja_fault fault;
    char *message; /* in the arena, or a constant */
    jmp_buf *leave; /* of whoever guards at the moment */
};

_Noreturn void jinja_fail(struct render *r, enum jinja_fault fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void jinja_fail_memory(struct render *r); /* the limit, not the machine's */
_Noreturn void jinja_fail_undefined(struct render *r, struct value v);
void *jinja_room(struct render *r, size_t count, size_t size);
void jinja_step(struct render *r, int64_t cost);
void jinja_enter(struct render *r);
static inline void jinja_leave(struct render *r) { r->left.depth++; }

void out_add(struct render *r, struct out *o, const char *bytes, size_t n);
void out_add_text(struct render *r, struct out *o, const char *text);
void out_add_char(struct render *r, struct out *o, uint32_t c);
void out_fill(struct render *r, struct out *o, uint32_t c, int64_t count);
struct value out_take(struct render *r, struct out *o); /* as a string */

/* ---- jinja_value.c: making and asking -------------------------------------------------------------------------------- */

struct value value_text_n(struct render *r, const char *bytes, size_t n); /* borrows bytes */
struct value value_text(struct render *r, const char *text);              /* borrows text */
struct value value_markup(struct render *r, struct value text);
struct value value_concat(struct render *r, struct value a, struct value b); /* two strings */
struct value value_list(struct render *r, const struct value *at, size_t n); /* takes at */
struct value value_tuple(struct render *r, const struct value *at, size_t n);
struct value value_pair(struct render *r, struct value a, struct value b);
struct value value_list_concat(struct render *r, struct value a, struct value b);
struct value value_undefined(struct render *r, const char *said, const char *of, struct value name);
struct value value_unsafe(struct render *r, struct value of, const char *name);
struct value value_function(const struct function *f);
void list_add(struct render *r, struct list *l, struct value v); /* while it is being made */
void dict_set(struct render *r, struct dict *d, struct value key, struct value v);
struct value *dict_get(struct render *r, const struct dict *d, struct value key);
struct value *dict_get_text(struct render *r, const struct dict *d, const char *key);
struct value value_dict(struct render *r, const struct dict *d); /* a copy of the head */

const char *value_type(struct value v); /* Python's name of the type */
int value_truth(struct render *r, struct value v);
int value_equal(struct render *r, struct value a, struct value b);
int value_same(struct value a, struct value b);
int value_less(struct render *r, struct value a, struct value b, const char *op); /* a < b, or a > b for op ">" and so on */
int value_contains(struct render *r, struct value v, struct value item);
int64_t value_length(struct render *r, struct value v);
uint64_t value_hash(struct render *r, struct value v);
int value_is_iterable(struct value v);
int value_is_callable(struct value v);
void walk_init(struct render *r, struct walk *w, struct value v);
int walk_next(struct walk *w, struct value *out);
struct list value_items(struct render *r, struct value v); /* everything that a walk gives */

/* ---- jinja_attr.c: names, subscripts and slices ----------------------------------------------------------------------- */

struct value value_attr(struct render *r, struct value v, struct value name); /* v.name */
struct value value_item(struct render *r, struct value v, struct value key);  /* v[key] */
struct value value_path(struct render *r, struct value v, struct value path, struct value otherwise); /* "a.b.0" */
struct value value_slice(struct render *r, struct value v, struct value start, struct value stop, struct value step);
void space_set(struct render *r, struct space *s, struct value name, struct value v);

/* ---- jinja_number.c --------------------------------------------------------------------------------------------------- */

/* op: one of + - * / % and 'f' for //, 'p' for ** */
struct value number_binary(struct render *r, int op, struct value a, struct value b);
struct value value_binary(struct render *r, int op, struct value a, struct value b);  /* texts and lists too */
struct value value_negate(struct render *r, struct value v, int minus);
double value_to_double(struct render *r, struct value v);
int64_t value_index(struct render *r, struct value v); /* an integer argument */
int number_compare(struct value a, struct value b);  /* -1, 0, 1; 2 for nan */
int number_parse_int(const char *s, size_t n, int base, struct render *r, struct value *out);
int number_parse_float(const char *s, size_t n, double *out);
enum { NUMBER_ROOM = 400 };
void number_show(double f, char out[NUMBER_ROOM]); /* shortest that reads back as f, as Python writes it */
struct value number_round(struct render *r, struct value v, int64_t digits);

/* ---- jinja_show.c ------------------------------------------------------------------------------------------------------ */

void value_show(struct render *r, struct out *o, struct value v); /* str() */
void value_repr(struct render *r, struct out *o, struct value v);
struct value value_to_text(struct render *r, struct value v); /* strings as they are */
struct value text_escape(struct render *r, struct value v);    /* HTML */
struct json_style { int ascii, sort, indented; struct value indent, item, key; };
void value_json(struct render *r, struct out *o, struct value v, const struct json_style *style, int level);

/* ---- jinja_text.c: Unicode ------------------------------------------------------------------------------------------- */

uint32_t text_char(const char *s, size_t n, size_t *used); /* the code point at s; n > 0 */
size_t text_put(char *s, uint32_t c);                        /* up to 4 bytes */
int64_t text_count(const char *s, size_t n);
int text_is_valid(const char *s, size_t n); /* UTF-8 without surrogates */
const char *text_find(const char *s, size_t n, const char *what, size_t m);
size_t text_offset(const struct text *t, int64_t at_char);
int char_is_space(uint32_t c);
int char_is_printable(uint32_t c);
int char_is_word(uint32_t c); /* letter, digit or underscore, as \w */
enum text_case { CASE_LOWER, CASE_UPPER, CASE_TITLE, CASE_FOLD, CASE_SWAP, CASE_CAPITAL };
struct value text_case(struct render *r, struct value v, enum text_case how);
uint32_t text_named(const char *name, size_t n); /* \N{NAME}; 0 if not known */
int text_all(const char *s, size_t n, int (*is)(uint32_t)); /* one or more characters, all so */
int char_is_digit(uint32_t c), char_is_decimal(uint32_t c), char_is_numeric(uint32_t c), char_is_alpha(uint32_t c),
    char_is_alnum(uint32_t c);
int text_is_cased(const char *s, size_t n, int upper);
struct value text_strip(struct render *r, struct value v, struct value chars, int sides); /* 1 left, 2 right */
struct value text_lines(struct render *r, struct value v, int keep_ends);

/* ---- jinja_format.c --------------------------------------------------------------------------------------------------- */

struct value format_percent(struct render *r, struct value format, struct value args);
struct value format_braces(struct render *r, struct value format, const struct call *c, const struct value *mapping);

/* ---- tables ------------------------------------------------------------------------------------------------------------ */

const struct function *filter_find(const char *name, size_t n);
const struct function *test_find(const char *name, size_t n);
const struct function *global_find(const char *name, size_t n);
const struct function *method_find(struct value v, const char *name, size_t n);
void call_bind(struct render *r, const struct function *f, const struct call *c, struct value *a);
struct value function_call(struct render *r, const struct function *f, struct value self, const struct call *c);
struct value value_call(struct render *r, struct value f, const struct call *c);
struct value value_lower_case(struct render *r, struct value v); /* strings only; the rest unchanged */
void list_sort(struct render *r, struct value *items, const struct value *keys, size_t n, int reverse);

/* ---- jinja_json.c ------------------------------------------------------------------------------------------------------ */

/* JSON text to values, which borrow from it; big integers, inf and nan as Python reads them. */
struct value json_to_value(struct render *r, const char *text, size_t n, const char *name);
/* 0 when it is not JSON, which is then no fault. */
int json_try_value(struct render *r, const char *text, size_t n, struct value *out);

/* ---- templates ---------------------------------------------------------------------------------------------------------- */

struct jinja;
void jinja_run_init(struct render *r, const struct jinja_limits *limits);
void jinja_run_drop(struct render *r);
/* NULL when there is no memory or the template is wrong; the sentence in e names the line, and *fault its kind. */
struct jinja *jinja_new(const char *source, size_t n, enum jinja_fault *fault, struct weft_error *e);
void jinja_free(struct jinja *t);
int jinja_mentions(const struct jinja *t, const char *name);
/* context: names to values, in r's arena. The text is in *out, in r's arena. On a fault r->message and r->line say why.
 * Also runs `prepare` first, if given, under the same setjmp: it makes the context. */
typedef void jinja_prepare(struct render *r, void *arg, struct dict *context);
enum jinja_fault jinja_render(const struct jinja *t, struct render *r, jinja_prepare *prepare, void *arg, struct value *out);
#endif

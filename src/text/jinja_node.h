/* The tree of a compiled template, and the tokens it is made from. */
#ifndef TEXT_JINJA_NODE_H
#define TEXT_JINJA_NODE_H
#include "text/jinja.h"

enum token_kind {
    TOKEN_DATA, TOKEN_PRINT_BEGIN, TOKEN_PRINT_END, TOKEN_BLOCK_BEGIN, TOKEN_BLOCK_END, TOKEN_NAME, TOKEN_STRING, TOKEN_INTEGER,
    TOKEN_FLOAT, TOKEN_OPERATOR, TOKEN_EOF,
};

/* bytes: the data, name or operator; for strings and numbers `value` holds what they mean. */
struct token { enum token_kind kind; int line; const char *bytes; size_t n; struct value value; };

/* Tokens of a whole template, TOKEN_EOF last. Fails through r. */
struct token *jinja_lex(struct render *r, const char *source, size_t n);

/* A name that the template uses, once. Compared by address. */
struct name { struct value text; const struct function *global; };

enum node_kind {
    /* expressions */
    NODE_CONST, NODE_NAME, NODE_LIST, NODE_TUPLE, NODE_DICT, NODE_ATTR, NODE_ITEM, NODE_SLICE, NODE_CALL, NODE_FILTER, NODE_TEST,
    NODE_NOT, NODE_AND, NODE_OR, NODE_NEGATE, NODE_PLUS, NODE_BINARY, NODE_CONCAT, NODE_COMPARE, NODE_IF_ELSE,
    /* statements */
    NODE_DATA, NODE_PRINT, NODE_IF, NODE_FOR, NODE_SET, NODE_SET_BLOCK, NODE_MACRO, NODE_CALL_BLOCK, NODE_FILTER_BLOCK, NODE_WITH,
    NODE_BLOCK, NODE_AUTOESCAPE, NODE_SCOPE, NODE_BREAK, NODE_CONTINUE, NODE_NO_LOADER,
    /* places to store to */
    NODE_ATTR_OF,
};

struct nodes { struct node **at; size_t n; };
struct argument { const struct name *name; struct node *value; int star; }; /* star: 1 for *list, 2 for **names */
struct arguments { struct argument *at; size_t n; };

/* What each kind uses:
 * CONST value; NAME name; LIST TUPLE list; DICT list (key, value, key, ...); ATTR left, value (the name);
 * ITEM left, right; SLICE left, list (start, stop, step; NULL where absent); CALL left, arguments;
 * FILTER TEST left (NULL: the block's text), value (its name), function (NULL: unknown), arguments;
 * NOT NEGATE PLUS left; AND OR left, right; BINARY op, left, right; CONCAT list; COMPARE left, list, ops;
 * IF_ELSE test, left, right (NULL: undefined); DATA value; PRINT list;
 * IF list (IF_ELSE nodes with test and body), other; FOR target, left (what is walked), test, body, other, recursive;
 * SET target, left; SET_BLOCK target, left (filters or NULL), body; MACRO name, list (parameters), list2 (defaults), body, uses;
 * CALL_BLOCK left (the call), list, list2, body, uses; FILTER_BLOCK left, body; WITH list (targets), list2 (values), body;
 * BLOCK name, body, recursive (scoped); AUTOESCAPE left, body; SCOPE body; ATTR_OF name, value */
struct node {
    enum node_kind kind;
    int line, op, recursive, uses;
    struct value value;
    const struct name *name;
    const struct function *function;
    struct node *left, *right, *test, *target;
    struct nodes list, list2, body, other;
    struct arguments arguments;
    const char *const *ops; /* COMPARE: one for each of list */
};

enum { USES_CALLER = 1, USES_KWARGS = 2, USES_VARARGS = 4 };

struct jinja {
    struct render made; /* owns the arena of everything here */
    struct nodes body;
    struct name **names;
    size_t n_names, n_slots; /* an open hash of names */
    const struct name *loop, *caller, *kwargs, *varargs, *self;
    struct node **blocks;
    size_t n_blocks;
};

void jinja_parse(struct render *r, struct jinja *t, const char *source, size_t n);
const struct name *jinja_name(struct render *r, struct jinja *t, const char *bytes, size_t n); /* makes it if it is new */
const struct name *jinja_find_name(const struct jinja *t, const char *bytes, size_t n);     /* or NULL */
#endif

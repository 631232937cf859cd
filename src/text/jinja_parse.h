/* What the two halves of the parser share. */
#ifndef TEXT_JINJA_PARSE_H
#define TEXT_JINJA_PARSE_H
#include "text/jinja_node.h"

/* A filter or test that is not known. It is an error of the template unless every way to it leads through an `if`, and then
 * only when it is reached. `hard`: something other than an `if` lies around it since it was noted. */
struct unknown { const char *what, *name; int n, line, hard; };

struct parser {
    struct render *r;
    struct jinja *t;
    const struct token *at;
    int loops;  /* for statements around, up to the next macro or block */
    int uses;   /* which special names the body in hand mentions */
    struct unknown *unknown;
    size_t n_unknown, room_unknown;
};

_Noreturn void parse_fail(struct parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void parse_unexpected(struct parser *p, const char *wanted);
struct node *parse_node(struct parser *p, enum node_kind kind);
void parse_append(struct parser *p, struct nodes *list, struct node *n);
int token_is(const struct token *t, const char *op);      /* an operator */
int token_is_name(const struct token *t, const char *name);
int parse_skip(struct parser *p, const char *op);
int parse_skip_name(struct parser *p, const char *name);
void parse_expect(struct parser *p, const char *op);
const struct name *parse_expect_name(struct parser *p);

enum { TUPLE_NO_IF = 1, TUPLE_SIMPLE = 2, TUPLE_IN_BRACKETS = 4, TUPLE_NAMESPACE = 8 };
struct node *parse_expression(struct parser *p);
/* stop: a name that also ends the list, or NULL. */
struct node *parse_tuple(struct parser *p, int how, const char *stop);
struct node *parse_filters(struct parser *p, struct node *left, int inside_tag);
void parse_soften(struct parser *p, size_t mark); /* what was noted since `mark` lies behind an `if` */
void parse_harden(struct parser *p, size_t mark);
#endif

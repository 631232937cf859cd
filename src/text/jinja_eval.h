/* Running a compiled template. */
#ifndef TEXT_JINJA_EVAL_H
#define TEXT_JINJA_EVAL_H
#include "text/jinja_loop.h"
#include "text/jinja_node.h"

struct binding { const struct name *name; struct value value; };
/* Names of one body. `kept`: a macro refers to it, so that it may not be used again. */
struct scope { struct scope *parent; struct binding *at; size_t n, room; int kept; };

struct scope *scope_new(struct render *r, struct scope *parent);
void scope_set(struct render *r, struct scope *s, const struct name *name, struct value v);

struct value eval_node(struct render *r, const struct node *n);
void eval_arguments(struct render *r, const struct arguments *a, struct call *c, size_t more_named);

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };
enum flow exec_nodes(struct render *r, const struct nodes *body);
struct value exec_caught(struct render *r, const struct nodes *body, struct scope *scope); /* what it prints */
struct value macro_call(struct render *r, const struct macro *m, const struct call *c);
struct value loop_call(struct render *r, struct loop *l, const struct call *c);
#endif

/* What the evaluator keeps while it runs, as far as attributes look into it. */
#ifndef TEXT_JINJA_LOOP_H
#define TEXT_JINJA_LOOP_H
#include "text/jinja.h"

struct node;

/* The variable `loop`. Items are fetched when they are asked for: a test of the for statement may depend on what its body did. */
struct loop {
    struct list items; /* fetched so far */
    struct walk source;
    int exhausted;
    size_t at; /* of the item in turn */
    int64_t depth;
    const struct node *node;
    struct scope *scope;  /* around it */
    struct value changed; /* what changed() saw last: a tuple */
};

/* Also the body of a call block, and a block by way of `self`. */
struct macro { const struct node *node; struct scope *scope; };

struct value loop_attr(struct render *r, struct loop *l, struct value name);
struct value macro_attr(struct render *r, const struct macro *m, struct value name);
struct value self_attr(struct render *r, struct value name);
#endif

/* Messages as the template gets to see them. */
#ifndef TEXT_TEMPLATE_PREPARE_H
#define TEXT_TEMPLATE_PREPARE_H
#include "text/jinja.h"
#include "text/template.h"

/* What may be done to messages that a template would not take as they are. */
enum {
    REPAIR_DECODE = 1,  /* tool arguments given as JSON text become objects */
    REPAIR_CONTENT = 2, /* a message without content gets an empty one */
    REPAIR_SYSTEM = 4,  /* system messages are joined into one at the beginning */
    REPAIR_ENCODE = 8,  /* tool arguments become JSON text */
};

struct template_work {
    const struct template_input *in;
    const json_t *special; /* the model's special tokens */
    const struct jinja *with_tools; /* the template to take where tools are given; NULL: the same */
    int repairs;
    /* out */
    int continued;         /* the prompt is to be cut at the mark */
    struct value text;     /* the text that the mark was put behind */
};

extern const char template_mark[];
/* A jinja_prepare; arg is a struct template_work. */
void template_prepare(struct render *r, void *arg, struct dict *context);
#endif

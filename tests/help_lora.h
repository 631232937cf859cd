/* Toy checkpoints and adapters of random fp32 values, kept in memory so that a test can merge by hand. */
#ifndef HELP_LORA_H
#define HELP_LORA_H
#include "help_model.h"
#include "lora/adapter.h"

enum { TOY_TENSORS = 160 };

struct toy_tensor { char name[128]; int n_dims; int64_t shape[3]; float *data; enum dtype dtype; };
struct toy { int n; struct toy_tensor t[TOY_TENSORS]; uint64_t seed; char config[2048]; };

/* Two layers (delta rule, attention), hidden 64, vocabulary 32. */
void toy_base(struct toy *t, int tied, int experts);
/* A tensor of random values about `scale`; two dims with b > 0, three with c > 0. */
struct toy_tensor *toy_add(struct toy *t, const char *name, float scale, int64_t a, int64_t b, int64_t c);
struct toy_tensor *toy_find(struct toy *t, const char *name);
void toy_copy(struct toy *to, const struct toy *from);
void toy_drop(struct toy *t);
/* Writes the folder help_temp(folder): `file` with the tensors and `config_name` with the config. Returns its path. */
const char *toy_write(const struct toy *t, const char *folder, const char *file, const char *config_name);
int64_t toy_count(const struct toy_tensor *t);

/* What a test adapter is made of. */
struct lora_recipe {
    const char *name;
    int mlx, dora, rank, embedding, head;
    uint64_t seed;
    double scale;      /* what the config must come to */
    const char *config;
};
enum { LORA_RECIPES = 5 };
/* PEFT: plain with embedding and head, rslora, DoRA; MLX: plain, DoRA. */
extern const struct lora_recipe lora_recipes[LORA_RECIPES];
/* Calls fn for every linear of toy_base without experts, the head too when the recipe has it. */
void lora_each_linear(const struct lora_recipe *r, void (*fn)(void *arg, const char *module), void *arg);
struct toy_tensor *toy_weight(struct toy *base, const char *module);
void lora_make(struct toy *out, const struct lora_recipe *r, struct toy *base);
const char *lora_write(const struct lora_recipe *r, const struct toy *a);
/* Of adapters that exist; fails the test when it cannot be made. */
struct adapter_set *lora_set(struct adapter_sets *sets, const struct adapter_use *uses, int n);

/* Logits of every row [n][vocab] (mem_free) of one sequence under a set; cuts as in help_model.h. */
float *lora_logits(struct runner *r, const struct adapter_set *set, const struct prompt *p);
struct adapter *lora_open(struct runner *r, const char *folder);
#endif

/* The one normalizer of tensor names: weights, quantization overrides and adapters all pass through it.
 *
 * Canonical names: `embed_tokens.weight`, `layers.3.self_attn.q_proj.weight`, `norm.weight` (text), `lm_head.weight`,
 * `mtp.layers.0.…`, `mtp.fc.weight`, `visual.blocks.0.…`. Whatever prefix a publisher chose (`model.`, `language_model.model.`,
 * `model.language_model.`, ...) is gone. */
#ifndef CHECKPOINT_NAMES_H
#define CHECKPOINT_NAMES_H

enum name_kind { NAME_TEXT, NAME_HEAD, NAME_MTP, NAME_VISION, NAME_OTHER };
enum { NAME_ROOM = 512 }; /* longest canonical name, the zero byte included */

/* A module path or a tensor name. With `drafter` bare names (`fc.weight`, `layers.0.…`, `norm.weight`) belong to the MTP head.
 * NAME_OTHER: nothing known, out holds the stripped name. -1: longer than NAME_ROOM allows. */
int name_canonical(const char *source, int drafter, char out[NAME_ROOM]);
const char *name_kind_text(enum name_kind k); /* "text", "head", "MTP", "vision", "other" */
#endif

/* Unicode normalization form C. Text that is already normal, nearly all there is, is recognised without being rewritten. */
#ifndef TEXT_TOKENIZER_NFC_H
#define TEXT_TOKENIZER_NFC_H
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct nfc { struct buf text; int32_t *chars, *sorted; size_t room; }; /* working memory; start from {0} */
void nfc_drop(struct nfc *n);
/* The normal form of well-formed text, in n->text or `p` itself; NULL when there is no memory. */
const uint8_t *nfc_run(struct nfc *n, const uint8_t *table, const uint8_t *p, size_t n_bytes, size_t *n_out);
#endif

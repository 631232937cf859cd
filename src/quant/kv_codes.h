/* Codes of one row in a block; shared by the formats made of them. */
#ifndef QUANT_KV_CODES_H
#define QUANT_KV_CODES_H
#include "quant/kv.h"
void kv_codes_put(uint8_t *block, int is_v, struct kv_shape s, int row, const uint8_t *codes); /* codes [dim] */
void kv_codes_get(const uint8_t *block, int is_v, struct kv_shape s, int row, uint8_t *codes);
#endif

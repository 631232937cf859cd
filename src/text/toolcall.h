/* Tool calls as models write them, made into the objects that clients expect. */
#ifndef TEXT_TOOLCALL_H
#define TEXT_TOOLCALL_H
#include <jansson.h>

#include "base/error.h"

/* Reads the text between <tool_call> and </tool_call> and appends {"function": {"name", "arguments"}, "type": "function"} to
 * the list `calls` for each call in it; "arguments" is JSON text. tools (or NULL) are the functions on offer, whose schemas give
 * the values of the qwen3_coder form their types. Families:
 *   "json"         {"name": ..., "arguments": {...}}
 *   "qwen3_coder"  <function=NAME> <parameter=KEY> VALUE </parameter> ... </function>
 * Returns how many were appended; 0 for text that is no call: e then says why. Negative without memory or for an unknown
 * family. All or none: of a text with one bad call nothing is appended. */
int toolcall_parse(json_t *calls, const char *family, const char *text, size_t n, const json_t *tools, struct weft_error *e);
int toolcall_family_is_known(const char *family);
#endif

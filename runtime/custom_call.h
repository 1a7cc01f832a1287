/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of custom calls, version 1: a function of type gristmill_custom_call can be registered from Python
 * by its address, gristmill.register_custom_call(name, address). */
#ifndef GRISTMILL_CUSTOM_CALL_H
#define GRISTMILL_CUSTOM_CALL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The type of an array; its data are dense and row-major. */
typedef struct {
  const char *element;  /* "f32", "ui8", "complex<f64>", "bf16", ...; "i1" is one byte, 0 or 1; so are types
                           narrower than a byte */
  int64_t rank;
  const int64_t *shape; /* rank extents */
} gristmill_array_type;

/* What stays the same in every execution of a call. */
typedef struct {
  int64_t version;      /* 1 */
  const char *target;   /* the name the function was registered under */
  const char *config;   /* the call's backend_config: the string itself, or JSON text of a dictionary */
  int64_t config_size;  /* bytes, not counting a final 0 */
  int64_t num_inputs;
  int64_t num_outputs;
  const gristmill_array_type *inputs;
  const gristmill_array_type *outputs;
  void *user_data;      /* as registered */
} gristmill_call;

enum { GRISTMILL_MESSAGE_BYTES = 512 };

/* Reads inputs[i], writes every element of outputs[i]; both are aligned to their element at least, and valid during
 * the call only. Inputs must not be written. Returns 0, or anything else for failure: then the execution ends with an
 * error whose text is message, a string of at most GRISTMILL_MESSAGE_BYTES bytes with its final 0. It may run in several
 * threads at once, without Python's lock. */
typedef int32_t (*gristmill_custom_call)(const gristmill_call *call, const void *const *inputs,
                                         void *const *outputs, char *message);

#ifdef __cplusplus
}
#endif

#endif

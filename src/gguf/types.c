/* types.c - the type numbers of GGUF: of metadata values and of tensors.
 *
 * The tensor table knows every type a file may hold today, also those that this build cannot run:
 * their tensors can then be listed and their bounds checked, and refusing to run them is the
 * model's decision with a name in its message. Numbers that are missing (4, 5, 31-33, 36-38) belong
 * to types that have been withdrawn. Source: the GGUF specification; PyPI `gguf`, constants.py;
 * Q8_1 and Q2_0 from ggml's block definitions.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "gguf/file.h"

/* X(name, number, elements of a block, bytes of a block) */
#define TENSOR_TYPES(X)   \
  X(F32, 0, 1, 4)         \
  X(F16, 1, 1, 2)         \
  X(Q4_0, 2, 32, 18)      \
  X(Q4_1, 3, 32, 20)      \
  X(Q5_0, 6, 32, 22)      \
  X(Q5_1, 7, 32, 24)      \
  X(Q8_0, 8, 32, 34)      \
  X(Q8_1, 9, 32, 36)      \
  X(Q2_K, 10, 256, 84)    \
  X(Q3_K, 11, 256, 110)   \
  X(Q4_K, 12, 256, 144)   \
  X(Q5_K, 13, 256, 176)   \
  X(Q6_K, 14, 256, 210)   \
  X(Q8_K, 15, 256, 292)   \
  X(IQ2_XXS, 16, 256, 66) \
  X(IQ2_XS, 17, 256, 74)  \
  X(IQ3_XXS, 18, 256, 98) \
  X(IQ1_S, 19, 256, 50)   \
  X(IQ4_NL, 20, 32, 18)   \
  X(IQ3_S, 21, 256, 110)  \
  X(IQ2_S, 22, 256, 82)   \
  X(IQ4_XS, 23, 256, 136) \
  X(I8, 24, 1, 1)         \
  X(I16, 25, 1, 2)        \
  X(I32, 26, 1, 4)        \
  X(I64, 27, 1, 8)        \
  X(F64, 28, 1, 8)        \
  X(IQ1_M, 29, 256, 56)   \
  X(BF16, 30, 1, 2)       \
  X(TQ1_0, 34, 256, 54)   \
  X(TQ2_0, 35, 256, 66)   \
  X(MXFP4, 39, 32, 17)    \
  X(NVFP4, 40, 64, 36)    \
  X(Q1_0, 41, 128, 18)    \
  X(Q2_0, 42, 64, 18)

static const struct {
  const char *name;
  uint32_t elements, bytes;
} tensor_types[] = {
#define ENTRY(name, number, elements, bytes) [number] = {#name, elements, bytes},
    TENSOR_TYPES(ENTRY)
#undef ENTRY
};
enum { TENSOR_TYPE_END = sizeof tensor_types / sizeof *tensor_types };

const char *gguf_type_name(uint32_t tensor_type) {
  return tensor_type < TENSOR_TYPE_END ? tensor_types[tensor_type].name : NULL;
}

bool gguf_type_block(uint32_t tensor_type, uint32_t *elements, uint32_t *bytes) {
  if (!gguf_type_name(tensor_type)) return false;
  *elements = tensor_types[tensor_type].elements;
  *bytes = tensor_types[tensor_type].bytes;
  return true;
}

static const struct {
  const char *name;
  size_t bytes;
} value_types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_value_type_name(gguf_type type) {
  return (uint32_t)type < GGUF_TYPE_COUNT ? value_types[type].name : "unknown";
}

size_t gguf_scalar_bytes(uint32_t type) {
  return type < GGUF_TYPE_COUNT ? value_types[type].bytes : 0;
}

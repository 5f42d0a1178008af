/* attn_parts.h - what attn_prompt.inc and attn_gen.inc need beside a lanes header.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_X86_ATTN_PARTS_H
#define KERNEL_X86_ATTN_PARTS_H

#include <stdbool.h>

#include "base/check.h"
#include "kernel/attn.h"

/* Tiles are loops of constant count over small arrays: unrolled whole, the arrays are registers. */
#define ALWAYS_INLINE inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif

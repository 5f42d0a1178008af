/* elem_avx512.c - elem.inc at level avx512. SPDX-License-Identifier: Apache-2.0 */
#include "kernel/x86/lanes_avx512.h"

#define LEVEL(family) family##_avx512_fill
#include "kernel/x86/elem.inc"

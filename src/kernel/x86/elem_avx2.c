/* elem_avx2.c - elem.inc at level avx2. SPDX-License-Identifier: Apache-2.0 */
#include "kernel/x86/lanes_avx2.h"

#define LEVEL(family) family##_avx2_fill
#include "kernel/x86/elem.inc"

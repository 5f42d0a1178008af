/* list.h - one line per kernel family: reference, tolerance, check and benchmark all hang on it.
 *
 * X(family, tolerance, check, bench, what it is held against)
 * tolerance: "bits" - every level equals the scalar reference in every bit (any NaN equals any
 * NaN); "bound" - the scalar reference against float64, within the error bound its check derives.
 * A new family is one line here and one check in a support file. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef TESTS_KERNEL_LIST_H
#define TESTS_KERNEL_LIST_H

#include "support_attn.h"
#include "support_elem.h"

#define CHECK_FAMILY_LIST(X)                                                               \
  X(mask, "bits", check_mask, NULL, "the words people write")                              \
  X(pack, "bits", check_pack, NULL, "the decoder of quant, for each type")                 \
  X(mm_oracle, "bound", check_mm_oracle, NULL, "float64, within each format's error")      \
  X(mm, "bits", check_mm, bench_mm, "mm_ref.c: act and mm of every set, arithmetic, pack") \
  CHECK_ATTN_LIST(X) CHECK_ELEM_LIST(X)

#endif

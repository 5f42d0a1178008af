/* support.h - golden files and repeatable random numbers for the tests of quant.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_QUANT_SUPPORT_H
#define TEST_QUANT_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

/* The whole of tests/golden/quant/<name>; the caller frees it. The test fails if it is not there.
 */
uint8_t *golden_read(const char *name, size_t *len);

/* Knuth's MMIX generator; golden files are made with the same one. */
uint32_t random_u32(uint64_t *state);
double random_normal(uint64_t *state);

#endif

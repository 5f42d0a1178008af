/* SPDX-License-Identifier: Apache-2.0 */
/* sha256.h - the hash that names a model file in records of measurements. Source: FIPS 180-4. About
 * 0.3 GB/s. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct sha256 {
  uint32_t state[8];
  uint64_t bytes;
  uint8_t block[64]; /* the first bytes % 64 of it wait for the rest */
} sha256;

void sha256_begin(sha256 *h);
void sha256_add(sha256 *h, const void *data, size_t len);
void sha256_end(sha256 *h, char hex[65]);
/* The first 64 bits, never 0: for what names a thing by a number, 0 being "none". */
uint64_t sha256_end_number(sha256 *h);

#endif

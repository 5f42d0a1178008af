/* exp.h - one exponential for every level: the same steps on a float, 8 lanes or 16 lanes give the
 * same bits.
 *
 *   x = n * ln2 + r, |r| <= ln2 / 2;  exp(x) = 2^n * (1 + r + r^2 * P(r)),  P of degree 4
 *
 * n is rounded to nearest even by adding 1.5 * 2^23: the low bits of that sum are n itself, so that
 * 2^n is an integer addition to the exponent. ln2 is cut in two: n * LN2_HI is exact for |n| <=
 * 2^9. P is the minimax fit of the relative error (3e-9, far below the rounding of the last two
 * fmas); the whole is within 0.9 ulp, see tests/kernel/test_elem.c. Below EXP_LOW the answer is 0
 * rather than a denormal, above EXP_HIGH infinity; NaN stays NaN. Cost: 10 fma or add, and the
 * scaling. Source: the method is Cody and Waite, "Software Manual for the Elementary Functions",
 * 1980; the coefficients are our own fit. SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_EXP_H
#define KERNEL_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXP_LOW -87.3f          /* exp(-87.3) is the last that is surely a normal number */
#define EXP_HIGH 0x1.62e42ep+6f /* 88.72283: exp of it is the last finite float */
#define EXP_LOG2E 0x1.715476p+0f
#define EXP_ROUND 12582912.0f /* 1.5 * 2^23 */
#define EXP_LN2_HI 0x1.62e4p-1f
#define EXP_LN2_LO 0x1.7f7d1cp-20f
#define EXP_C2 0x1.fffffcp-2f
#define EXP_C3 0x1.555492p-3f
#define EXP_C4 0x1.5558f2p-5f
#define EXP_C5 0x1.123a2p-7f
#define EXP_C6 0x1.6a23dp-10f

/* Declares t (n sits in its low bits) and p (the value before 2^n) for x in [EXP_LOW, EXP_HIGH].
 * `set` makes a `type` of a float, fma(a, b, c) = a * b + c rounded once, sub(a, b) = a - b. */
#define EXP_CORE(type, set, fma, sub, x, t, p)       \
  type t = fma((x), set(EXP_LOG2E), set(EXP_ROUND)); \
  type exp_n = sub(t, set(EXP_ROUND));               \
  type exp_r = fma(exp_n, set(-EXP_LN2_HI), (x));    \
  exp_r = fma(exp_n, set(-EXP_LN2_LO), exp_r);       \
  type p = fma(set(EXP_C6), exp_r, set(EXP_C5));     \
  p = fma(p, exp_r, set(EXP_C4));                    \
  p = fma(p, exp_r, set(EXP_C3));                    \
  p = fma(p, exp_r, set(EXP_C2));                    \
  p = fma(p, exp_r, set(1.0f));                      \
  p = fma(p, exp_r, set(1.0f))

#define EXP_SCALAR_SET(value) (value)
#define EXP_SCALAR_SUB(a, b) ((a) - (b))

static inline float exp_scalar(float x) {
  if (!(x >= EXP_LOW)) return x != x ? x : 0.0f;
  if (x > EXP_HIGH) return INFINITY;
  EXP_CORE(float, EXP_SCALAR_SET, fmaf, EXP_SCALAR_SUB, x, t, p);
  uint32_t power, bits;
  memcpy(&power, &t, sizeof power);
  memcpy(&bits, &p, sizeof bits);
  bits += power << 23;
  memcpy(&p, &bits, sizeof p);
  return p;
}

#endif

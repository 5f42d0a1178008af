/* mm_rows.h - writing a statement once for 1 to 8 rows whose state lives in named variables.
 *
 * Why not arrays and a loop: gcc splits aggregates into registers before it unrolls, so
 * accumulators in an array are spilled. X(i) is expanded with i = 0 .. ROWS-1.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_X86_MM_ROWS_H
#define KERNEL_X86_MM_ROWS_H

#define ROWS_1(X) X(0)
#define ROWS_2(X) ROWS_1(X) X(1)
#define ROWS_3(X) ROWS_2(X) X(2)
#define ROWS_4(X) ROWS_3(X) X(3)
#define ROWS_5(X) ROWS_4(X) X(4)
#define ROWS_6(X) ROWS_5(X) X(5)
#define ROWS_7(X) ROWS_6(X) X(6)
#define ROWS_8(X) ROWS_7(X) X(7)

#define ROWS_JOIN_(a, b) a##b
#define ROWS_JOIN(a, b) ROWS_JOIN_(a, b)
#define ROWS_EACH ROWS_JOIN(ROWS_, ROWS)

#endif

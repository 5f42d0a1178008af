#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/lint.sh - clang-tidy (checks of .clang-tidy) over every C file of src, two at a time; needs build/clang's compile commands.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -f build/clang/compile_commands.json ] || { echo "lint: build/clang is not there: tools/build.sh clang" >&2; exit 1; }
find src -name '*.c' -print0 | sort -z |
  xargs -0 -r -n 4 -P "$(nproc)" clang-tidy-14 -p build/clang --quiet --warnings-as-errors='*' \
    2> >(grep -v 'warnings generated\|Suppressed\|Use -header-filter' >&2)

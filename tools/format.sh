#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/format.sh [--check] - clang-format over every C file; with --check it changes nothing and fails if it would.
set -euo pipefail
cd "$(dirname "$0")/.."
folders=()
for folder in src include tests bench tools; do [ -d $folder ] && folders+=($folder); done
options=(-i)
[ "${1:-}" = --check ] && options=(--dry-run --Werror)
command -v clang-format-14 >/dev/null || { echo "format: clang-format-14 is missing" >&2; exit 1; }
find "${folders[@]}" -name '*.[ch]' -not -path '*/rust/*' -print0 | xargs -0 -r -n 32 clang-format-14 --style=file "${options[@]}"

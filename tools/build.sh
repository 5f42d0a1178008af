#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/build.sh PRESET [TARGET...] - configures build/PRESET if it must, then builds (all targets by default).
#
# A build folder is configured again only if it is not there or if what setup found has changed (another cargo, tests wanted where there
# was no cmocka before): ninja itself notices changed CMake files. Set VERBOSE=1 to see every command.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
folder=build/$preset
cargo=$PWD/build/setup/cargo
tests=OFF
pkg-config --exists cmocka && tests=ON
want="cargo=$cargo tests=$tests"
stamp=$folder/.configured
if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  mkdir -p "$folder"
  if ! cmake --preset "$preset" -DTROIKA_CARGO="$cargo" -DTROIKA_TESTS=$tests >"$folder/configure.log" 2>&1; then
    cat "$folder/configure.log" >&2
    exit 1
  fi
  echo "$want" >"$stamp"
fi
# Progress is for a person at a terminal; into a file go only warnings and errors.
if [ -n "${VERBOSE:-}" ]; then exec ninja -C "$folder" -v "$@"; fi
if [ -t 1 ]; then exec ninja -C "$folder" "$@"; fi
exec ninja -C "$folder" --quiet "$@"

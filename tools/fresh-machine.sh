#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/fresh-machine.sh [--keep] [--uncommitted] [--folder DIR] [STEP...] - does what README.md says on a machine that has nothing.
#
# Makes a bare Debian 12 in a chroot (debootstrap, 220 MiB, below TMPDIR), gives it this host's way to the package
# registries (apt sources, pip, npm and cargo settings, certificates, proxies), clones this repository into it and takes these
# steps, each timed:
#
#   setup   tools/setup.sh test
#   user    tools/setup.sh build as a user who is not root, before anything is installed: must name what is missing
#   run     make run, the curl line that it prints, then make run again
#   test    make test
#
# Default: user, run, test. Needs root and debootstrap. --uncommitted takes the working tree instead of the last commit,
# --keep leaves the chroot.
# A folder that already holds one is used again. Figures: build/reports/fresh-machine.json.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
keep=no uncommitted=no folder='' steps=()
while [ $# -gt 0 ]; do
  case $1 in
  --keep) keep=yes ;;
  --uncommitted) uncommitted=yes ;;
  --folder) folder=$2 keep=yes; shift ;;
  setup | user | run | test) steps+=("$1") ;;
  *) sed -n '3,19s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
[ ${#steps[@]} -gt 0 ] || steps=(user run test)
[ "$(id -u)" = 0 ] || { echo "fresh-machine: only root may make a chroot" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "fresh-machine: apt-get install debootstrap" >&2; exit 1; }

suite=bookworm
port=${PORT:-18080}
[ -n "$folder" ] || folder=$(mktemp -d "${TMPDIR:-/tmp}/troika-fresh.XXXXXX")
mkdir -p "$folder"
root=$folder/root
home=/root # of the chroot's only user
server=''

clean_up() {
  [ -z "$server" ] || kill -- "-$server" 2>/dev/null || true
  local mounted
  for mounted in dev/pts proc; do
    if mountpoint -q "$root/$mounted"; then umount -l "$root/$mounted"; fi
  done
  if [ $keep = yes ]; then echo "fresh-machine: kept in $folder" >&2; else rm -rf --one-file-system "$folder"; fi
}
trap clean_up EXIT

# Answers the first URI of the host's own Debian sources.
host_mirror() {
  grep -rhoE 'https?://[^] ]+/debian/?( |$)|^URIs: .*/debian/?$' /etc/apt/sources.list /etc/apt/sources.list.d \
    --include='*.list' --include='*.sources' 2>/dev/null |
    awk 'match($0, /https?:[^ ]+/) && !seen++ { print substr($0, RSTART, RLENGTH) }' || true
}

copy() { # FILE... into the same place of the chroot, if it is there
  local file
  for file in "$@"; do
    [ -e "$file" ] || continue
    mkdir -p "$root$(dirname "$file")"
    cp -rL "$file" "$root$(dirname "$file")/"
  done
}

copy_settings() {
  copy /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/npmrc
  rm -f "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
  local file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    if [ -f "$file" ] && grep -qE '/debian(-security)?/?( |$)' "$file"; then copy "$file"; fi
  done
  for file in /etc/apt/apt.conf.d/*; do
    if grep -q Acquire "$file" && ! grep -q IndexTargets "$file"; then copy "$file"; fi
  done
  copy /etc/apt/keyrings /etc/apt/trusted.gpg.d /etc/apt/auth.conf.d
  for file in .config/pip .pip .npmrc .cargo/config.toml .cargo/config; do
    [ -e "$HOME/$file" ] || continue
    mkdir -p "$root$home/$(dirname $file)"
    cp -rL "$HOME/$file" "$root$home/$file"
  done
  copy_certificates
}

# Certificates that the host trusts and a bare Debian does not, one a file, as update-ca-certificates wants them.
copy_certificates() {
  mkdir -p "$root/usr/local/share/ca-certificates"
  python3 - "$root" <<'PYTHON'
import glob, pathlib, re, sys
root = pathlib.Path(sys.argv[1])
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.S)
def certificates(path):
    return {re.sub(r"\s", "", one): one for one in PEM.findall(path.read_text(errors="replace"))} if path.is_file() else {}
known = certificates(root / "etc/ssl/certs/ca-certificates.crt")
host = certificates(pathlib.Path("/etc/ssl/certs/ca-certificates.crt"))
for name in glob.glob("/usr/local/share/ca-certificates/**/*.crt", recursive=True):
    host.update(certificates(pathlib.Path(name)))
for number, key in enumerate(sorted(set(host) - set(known))):
    (root / f"usr/local/share/ca-certificates/host-{number}.crt").write_text(host[key] + "\n")
PYTHON
  inside update-ca-certificates >/dev/null 2>&1
}

passed_variables() {
  local name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST \
    NPM_CONFIG_REGISTRY npm_config_registry CARGO_HTTP_PROXY CARGO_REGISTRIES_CRATES_IO_PROTOCOL; do
    [ -z "${!name:-}" ] || printf '%s\0' "$name=${!name}"
  done
  for name in PIP_CERT SSL_CERT_FILE CURL_CA_BUNDLE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS CARGO_HTTP_CAINFO; do
    if [ -n "${!name:-}" ] && [ -e "$root${!name}" ]; then printf '%s\0' "$name=${!name}"; fi
  done
}

inside() { # COMMAND... in the chroot, with a bare environment
  local -a variables
  mapfile -d '' variables < <(passed_variables)
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$home LANG=C.UTF-8 "${variables[@]}" \
    chroot "$root" "$@"
}

make_machine() {
  if [ ! -e "$root/etc/debian_version" ]; then
    local mirror
    mirror=$(host_mirror)
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror" >"$folder/debootstrap.log" 2>&1 ||
      { tail "$folder/debootstrap.log" >&2; exit 1; }
    copy_settings
  fi
  mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
  mkdir -p "$root/dev/pts" # terminals, for the tests of the chat
  mountpoint -q "$root/dev/pts" || mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
  [ -e "$root/dev/ptmx" ] || ln -s pts/ptmx "$root/dev/ptmx"
}

copy_tree() {
  rm -rf "$root/troika"
  if [ $uncommitted = yes ]; then
    mkdir "$root/troika"
    git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -cf - | tar -xf - -C "$root/troika"
  else
    git clone -q "$repository" "$root/troika"
  fi
  chown -R 0:0 "$root/troika"
}

row() { python3 "$repository/tools/report.py" add fresh-machine "$@"; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }

# What README.md asks for before anything else.
install_make() {
  inside sh -c 'apt-get -q update >/dev/null && apt-get -qy install --no-install-recommends make git >/dev/null 2>&1'
}

step_setup() {
  local start
  start=$(now)
  install_make
  inside sh -c 'cd /troika && tools/setup.sh test'
  row "set-up for tests, s" "" "$(since "$start")"
}

# Without root and without packages: a clear sentence, no attempt.
step_user() {
  local said code=0
  said=$(inside setpriv --reuid=65534 --regid=65534 --clear-groups \
    sh -c 'cp -r /troika /tmp/troika-user && cd /tmp/troika-user && HOME=/tmp/troika-user tools/setup.sh build' 2>&1) || code=$?
  rm -rf "$root/tmp/troika-user"
  echo "as a user: $said"
  row "user without root is told the apt-get line (exit code)" "== 1" $code
  row "  lines that name apt-get and libmicrohttpd-dev" "== 1" "$(grep -c 'sudo apt-get install.*libmicrohttpd-dev' <<<"$said")"
}

# Starts `make run`, waits for its curl line; leaves the seconds in $seconds and the line in $line.
start_server() {
  local start log=$folder/run.log
  start=$(now)
  : >"$log"
  set -m
  inside sh -c "cd /troika && exec make run PORT=$port" >"$log" 2>&1 &
  server=$!
  set +m
  while line=$(awk '/^ *curl /, !/\\$/' "$log" | sed 's/^[[:space:]]*//'); [ -z "$line" ]; do
    if ! kill -0 $server 2>/dev/null || [ "$(since "$start" | cut -d. -f1)" -gt 2400 ]; then
      echo "fresh-machine: make run ended without a curl line:" >&2
      tail -n 30 "$log" >&2
      return 1
    fi
    sleep 0.05
  done
  seconds=$(since "$start")
}

stop_server() {
  kill -INT -- "-$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  server=''
}

step_run() {
  install_make
  local line seconds start answer
  start_server
  row "first make run until it serves, s" "" "$seconds"
  echo "first make run: $seconds s; now: $line"
  start=$(now)
  answer=$(inside bash -c "$line" 2>"$folder/curl.log") || { cat "$folder/curl.log" >&2; return 1; }
  row "printed curl line, s" "" "$(since "$start")"
  echo "$answer" | head -c 2000
  echo
  row "printed curl line answers with choices" "== 1" "$(grep -c '"choices"' <<<"$(tr -d '\n' <<<"$answer")")"
  stop_server
  start_server
  row "second make run until it serves, s" "< 2" "$seconds"
  echo "second make run: $seconds s"
  stop_server
}

step_test() {
  local start code=0
  start=$(now)
  install_make
  inside sh -c 'cd /troika && exec make test' 2>&1 | tee "$folder/test.log" || code=$?
  row "make test, s" "<= 2400" "$(since "$start")"
  row "make test, exit code" "== 0" $code
  local last
  last=$(tail -n 1 "$folder/test.log")
  row "make test, passed" ">= 1" "$(sed -nE 's/^([0-9]+) passed.*/\1/p' <<<"$last")"
  row "make test, failed" "== 0" "$(sed -nE 's/^.* ([0-9]+) failed.*/\1/p' <<<"$last")"
}

python3 tools/report.py begin fresh-machine
start=$(now)
make_machine
row "bare Debian in a chroot, s" "" "$(since "$start")"
copy_tree
for step in "${steps[@]}"; do
  echo "== $step"
  "step_$step"
done
python3 tools/report.py show fresh-machine

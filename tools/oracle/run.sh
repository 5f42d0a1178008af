#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/oracle/run.sh [OPTION...] - `make oracle`: asks the reference library what the two real models answer, into build/oracle, and
# compares with the committed files of tests/golden/oracle. UPDATE=1 (or --update) replaces those. Options go to oracle.py.
#
# Its Python environment is its own, build/oracle-venv: 7 GB, which nobody else should have to install.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/oracle-venv
stamp=$venv/requirements.sha256
mkdir -p build

say() { echo "oracle: $*" >&2; }

want=$(sha256sum tools/oracle/requirements.txt)
if ! [ -f $stamp ] || [ "$(cat $stamp)" != "$want" ]; then
  say "torch and transformers, into $venv (3 GB to download, 7 GB installed; minutes)"
  [ -x $venv/bin/python ] || python3 -m venv $venv
  $venv/bin/python -m pip install -q --disable-pip-version-check --no-cache-dir --only-binary :all: \
    -r tools/oracle/requirements.txt
  echo "$want" >$stamp
fi
python3 tools/fetch.py smollm2 gemma3 tokenizer-gemma3
models=$(dirname "$(python3 tools/fetch.py path smollm2)")
tokenizer=$(python3 tools/fetch.py path tokenizer-gemma3)/models/tokenizer.json

# The models come from the cache folder; nothing may be asked of a model hub, and no accelerator may answer instead of the CPU.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TRANSFORMERS_VERBOSITY=error CUDA_VISIBLE_DEVICES= PYTHONDONTWRITEBYTECODE=1
# Threads that wait by spinning take the cores from those they wait for when others use them too.
export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0
# Without it the allocator keeps the freed blocks of logits: 8 GiB of peak memory for the small model alone.
export MALLOC_MMAP_THRESHOLD_=4194304
exec $venv/bin/python tools/oracle/oracle.py --models "$models" --gemma-tokenizer "$tokenizer" ${UPDATE:+--update} "$@"

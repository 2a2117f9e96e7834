#!/usr/bin/env bash
# The compiled kernels under AddressSanitizer: built into a copy of the source, run with the fuzzers' corpus and new mutations.
#     scripts/asan.sh [RUNS_OF_DECODERS] [RUNS_OF_FOLDERS]        PYTHON chooses the interpreter
# If the sanitizer finds anything, its report is printed and the exit code is not 0.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
case $python in /*) ;; *) python=$PWD/$python ;; esac
copy=${COPY:-build/asan}
library=$(gcc -print-file-name=libasan.so)
test -e "$library" || { echo "no libasan beside gcc: skipped"; exit 0; }
rm -rf "$copy"
mkdir -p "$copy"
git ls-files -z | grep -zv '^docs/\|^bench/\|^tests/data/' | xargs -0 cp --parents -t "$copy"
cd "$copy"
export PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 BROKERSTORE_REQUIRE_COMPILED=1
CFLAGS="-fsanitize=address -fno-omit-frame-pointer -g -O1" LDFLAGS="-fsanitize=address" "$python" setup.py -q build_ext --inplace > asan-build.log 2>&1 \
    || { tail -n 20 asan-build.log; exit 1; }
# Python's allocator would hide accesses after a block; leaks at exit are Python's own.
export LD_PRELOAD=$library ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:exitcode=99 PYTHONMALLOC=malloc
"$python" -c 'from storebytes.builds import build_name; assert build_name() == "compiled"; print("kernels under AddressSanitizer")'
"$python" -m fuzz.run decoders --runs "${1:-400000}" --seed 77
"$python" -m fuzz.run small-folders --runs "${2:-400}" --seed 77

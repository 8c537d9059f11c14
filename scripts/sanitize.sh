#!/usr/bin/env bash
# Builds tiledev with sanitizers beside the normal build and runs tests on it.
# usage: scripts/sanitize.sh NAME SANITIZERS RUNTIME [pytest arguments ...]
#   NAME        folder under build/
#   SANITIZERS  value of TILEDEV_SANITIZE
#   RUNTIME     gcc's runtime library, loaded before Python
# PYTHON names the interpreter (default: python); it needs torch, ninja and the test extra.
set -euo pipefail
cd "$(dirname "$0")/.."

name=$1
sanitizers=$2
runtime=$3
shift 3
python=${PYTHON:-python}
lib=$PWD/build/$name/lib

mkdir -p "$lib"
TILEDEV_SANITIZE=$sanitizers "$python" setup.py -q \
  build --build-lib "$lib" --build-temp "build/$name/tmp" \
  egg_info --egg-base "$lib"

# The C++ library comes along: a sanitizer looks up __cxa_throw before Python has loaded it.
cxx=${CXX:-c++}
preload="$($cxx -print-file-name="$runtime") $($cxx -print-file-name=libstdc++.so)"
# --capture=sys leaves stderr itself alone, where the sanitizers write.
# Fixed addresses: gcc's runtimes do not know the layouts of newer kernels.
exec setarch -R env \
  LD_PRELOAD="$preload" \
  PYTHONPATH="$lib" \
  PYTHONMALLOC=malloc \
  OMP_NUM_THREADS=2 \
  TILEDEV_VERIFY=1 \
  "$python" -m pytest -p no:cacheprovider -q --capture=sys --timeout 1200 "$@"

#!/usr/bin/env bash
# Repairs a Linux wheel: leaves torch's libraries and its OpenMP out, and tags the wheel
# manylinux_2_28 or, where this host's C library is newer than that allows, with the oldest
# tag that it allows.
# usage: scripts/repair_wheel.sh WHEEL DEST_DIR
set -euo pipefail

wheel=$1
dest=$2

# A second OpenMP runtime beside torch's would run twice the threads, so libgomp stays out too.
repair() {
  auditwheel repair --plat "$1" --wheel-dir "$dest" \
    --exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude libshm.so --exclude libgomp.so.1 \
    "$wheel"
}

if ! repair "manylinux_2_28_$(uname -m)"; then
  echo "repair_wheel: this host is too new for manylinux_2_28; taking the oldest tag that fits"
  repair auto
fi

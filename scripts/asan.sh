#!/usr/bin/env bash
# Runs tests under AddressSanitizer and UndefinedBehaviorSanitizer: scripts/asan.sh [pytest args]
set -euo pipefail
cd "$(dirname "$0")/.."

# Python and torch free little at exit, so leaks are not searched.
export ASAN_OPTIONS="detect_leaks=0:abort_on_error=1:alloc_dealloc_mismatch=0"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:suppressions=$PWD/scripts/ubsan.supp"
if (($# == 0)); then set -- tests/unit tests/device; fi
exec scripts/sanitize.sh asan address,undefined libasan.so "$@"

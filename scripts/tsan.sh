#!/usr/bin/env bash
# Runs tests under ThreadSanitizer: scripts/tsan.sh [pytest args]
set -euo pipefail
cd "$(dirname "$0")/.."

export TSAN_OPTIONS="halt_on_error=0:exitcode=66:suppressions=$PWD/scripts/tsan.supp"
TSAN_OPTIONS+=":ignore_noninstrumented_modules=1:report_signal_unsafe=0"
if (($# == 0)); then
  set -- tests/device/test_threads.py tests/device/test_context.py tests/device/test_optim_flush.py tests/models \
    tests/tiling/test_axes.py tests/tiling/test_products.py tests/tiling/test_schedule.py
fi
exec scripts/sanitize.sh tsan thread libtsan.so "$@"

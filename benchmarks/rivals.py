"""The rivals: what runs a work, and the process that it needs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.builders import Place

NAMES = ("cpu", "tcmalloc", "inductor", "tiledev")
PLACES = {
    "cpu": Place("cpu"),
    "tcmalloc": Place("cpu"),
    "inductor": Place("cpu", compiled=True),
    "tiledev": Place("tiledev"),
}
TCMALLOC = "libtcmalloc_minimal.so.4"  # of Debian's package libtcmalloc-minimal4
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_NOT_PASSED_ON = ("LD_PRELOAD", "TILEDEV_VERIFY")  # either would change what is measured


def find_tcmalloc() -> Path | None:
    """Returns the library, or None if it is not installed."""
    for folder in _FOLDERS:
        if (path := Path(folder) / TCMALLOC).exists():
            return path
    try:
        listing = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    lines = [line for line in listing.stdout.splitlines() if line.split()[:1] == [TCMALLOC]]
    return Path(lines[0].split(" => ")[1]) if lines else None


def why_missing(rival: str) -> str | None:
    """Returns why a rival cannot run on this machine, or None if it can."""
    if rival == "tcmalloc" and find_tcmalloc() is None:
        return f"{TCMALLOC} is not installed (Debian: apt-get install libtcmalloc-minimal4)"
    return None


def environment(rival: str, threads: int) -> dict[str, str]:
    """Returns the environment of a rival's process.

    tiledev is not even loaded where it is not the rival, so that it can change nothing there.
    """
    variables = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON}
    variables["OMP_NUM_THREADS"] = str(threads)
    variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1" if rival == "tiledev" else "0"
    if rival == "inductor":
        variables["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # leaves no pool of processes behind
    if rival == "tcmalloc":
        variables["LD_PRELOAD"] = str(find_tcmalloc())
    return variables

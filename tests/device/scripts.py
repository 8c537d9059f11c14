"""Python programs in processes of their own, for what happens at import, at exit and in a fork."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import tiledev

PACKAGE = Path(tiledev.__file__).parent


def environment(*paths: Path, autoload: bool = False) -> dict[str, str]:
    """The variables of a process that finds tiledev, and `paths` before it."""
    search = [*map(str, paths), str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, search)),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload)),
        "PYTHONWARNINGS": "default",
    }


def start(code: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    """Starts a program; it may be indented."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env or environment(), stdout=pipe, stderr=pipe, text=True)


def finish(process: "subprocess.Popen[str]", timeout: float = 60) -> "subprocess.CompletedProcess":
    """Waits for a program; one that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(code: str, env: dict[str, str] | None = None, timeout: float = 60):
    """Runs a program to its end; returns its exit status and what it printed."""
    return finish(start(code, env), timeout)


def check(code: str, env: dict[str, str] | None = None, timeout: float = 60) -> str:
    """Runs a program that has to succeed without a word on stderr; returns its output."""
    done = run(code, env, timeout)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr or done.returncode
    return done.stdout

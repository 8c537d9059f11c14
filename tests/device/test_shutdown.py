"""What becomes of values when the context is shut down, and that a new context can follow."""

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.tiledev_only


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pending_values_are_lost_and_others_stay():
    out = run(
        """
        import torch, tiledev
        done = torch.ones(3, device="tiledev") * 2
        done.cpu()
        lost = done + 1
        tiledev.shutdown_context()
        print(done.tolist())
        try:
            lost.cpu()
        except RuntimeError as error:
            print("shutdown_context" in str(error))
        print((done * 2).tolist())
        """
    )
    assert out.splitlines() == ["[2.0, 2.0, 2.0]", "True", "[4.0, 4.0, 4.0]"]


def test_cancelling_does_not_wait_for_what_has_not_started():
    out = run(
        """
        import time, torch, tiledev
        a = torch.ones(700, 700, device="tiledev")
        for _ in range(5000):  # minutes of work
            a = (a @ a) * 1e-3
        tiledev.execute()
        tiledev._C.shutdown_context(cancel=True)
        try:
            a.cpu()
        except RuntimeError as error:
            print("shutdown_context" in str(error))
        """
    )
    assert out.split() == ["True"]

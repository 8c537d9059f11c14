"""Random programs leave on the device, bit for bit, what they leave on the CPU.

The long mode is `python -m tests.device.random_programs`.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.device.programs import Writer, as_script, difference, reduce_program, run_program
from tests.device.random_programs import program


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.randoms(use_true_random=False), st.integers(5, 40))
def test_same_as_on_the_cpu(rng, length):
    lines = Writer(rng).write(length)
    found = difference(lines)
    assert found is None, as_script(lines, found)


@pytest.mark.parametrize("seed", range(3))
def test_a_program_has_one_meaning(seed):
    """The generator writes nothing whose outcome is left to chance."""
    lines = program(seed)
    assert lines == program(seed)
    assert difference(lines, "cpu") is None


def test_a_difference_is_found_and_reduced():
    lines = [
        "t1 = torch.ones(3, device=dev)",
        "t2 = t1[1:]",
        "t3 = t1 + 1",
        "t2.add_(dev == 'meta')",
    ]
    want = run_program(lines, "cpu")
    assert want.errors == ["", "", "", ""]

    def fails(candidate):
        return "t2.add_(dev == 'meta')" in candidate and "t2 = t1[1:]" in candidate

    assert reduce_program(lines, fails) == [lines[0], lines[1], lines[3]]
    script = as_script([*lines, "t1.view(2)"], "an example")
    assert "RuntimeError on the CPU" in script
    compile(script, "script", "exec")

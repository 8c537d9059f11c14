"""Strides of large results: they are found without running the op, and must be the CPU's."""

import pytest
import torch

from tests import support

DEVICE = support.DEVICE

LAYOUTS = {
    "transposed": lambda x: x.t(),
    "permuted": lambda x: x.view(300, 102, 3).permute(2, 0, 1),
    "every second": lambda x: x[:, ::2],
    "channels last": lambda x: x.view(15, 20, 34, 9).to(memory_format=torch.channels_last),
    "expanded": lambda x: x[:1].expand(300, 306),
}
OPS = {
    "abs": lambda x: x.abs(),
    "neg": lambda x: -x,
    "isinf": lambda x: x.isinf(),
    "logical_not": lambda x: x.logical_not(),
    "logical_and": lambda x: x.logical_and(x),
    "add": lambda x: x + x,
    "add a number": lambda x: x + 1,
    "compare": lambda x: x > 0.5,
    "where": lambda x: torch.where(x > 0.5, x, 2.0),
    "clamp": lambda x: x.clamp(0, 1),
    "pow of a number": lambda x: 2**x,
    "to": lambda x: x.double(),
    "out= that is empty": lambda x: torch.abs(x, out=x.new_empty(0)),
    "out= of another shape": lambda x: torch.add(x, 1, out=x.new_empty(3)),
    "out= of another type": lambda x: torch.add(x, 1, out=x.new_empty(0, dtype=torch.float64)),
    "out= of this shape": lambda x: torch.mul(x, 2, out=x.new_empty(x.shape)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_strides_are_the_cpus(op, layout):
    x = torch.rand(300, 306, generator=torch.Generator().manual_seed(0))
    result, expected = (OPS[op](LAYOUTS[layout](t)) for t in (x.to(DEVICE), x))
    assert result.stride() == expected.stride()
    assert result.cpu().equal(expected)

"""SiLUMul: the numbers of silu(gate) * up, with less kept for the backward pass."""

import pytest
import torch
import torch.nn.functional as F

from tests.compare import assert_same
from tests.nn.test_sdpa import LOOSE, drawn
from tiledev.nn import SiLUMul, silu_mul


def run(form, gate, up, device):
    leaves = [x.to(device, copy=True).requires_grad_() for x in (gate, up)]
    out = form(*leaves)
    out.square().sum().backward()
    return [out, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("dtype", LOOSE, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 7), (0, 4)], ids=str)
def test_device_and_cpu(shape, dtype):
    gate, up = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype)
    assert_same(lambda device: run(silu_mul, gate, up, device))


@pytest.mark.parametrize("dtype", LOOSE, ids=str)
def test_bits_are_those_of_two_ops(dtype, device):
    gate, up = drawn(4, 9, dtype=dtype), drawn(4, 9, dtype=dtype)
    got = run(silu_mul, gate, up, device)
    want = run(lambda g, u: F.silu(g) * u, gate, up, device)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_both_halves_of_one_projection(device):
    x = drawn(3, 4, 10).to(device)
    gate, up = x.chunk(2, -1)
    assert torch.equal(SiLUMul()(x), F.silu(gate) * up)
    assert torch.equal(SiLUMul()(gate, up), SiLUMul()(x))


def test_strided_inputs():
    x = drawn(6, 8)
    assert_same(lambda device: run(silu_mul, x.to(device).t()[::2], x.to(device).t()[1::2], device))


def test_it_keeps_its_inputs_alone(device):
    gate, up = (drawn(8, 8).to(device).requires_grad_() for _ in range(2))

    def kept(form):
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
            form(gate, up)
        return len({x.data_ptr() for x in seen} - {gate.data_ptr(), up.data_ptr()})

    assert kept(silu_mul) == 0
    assert kept(lambda g, u: F.silu(g) * u) == 1


@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_only_one_gradient(needs, device):
    leaves = [drawn(5).to(device).requires_grad_(need) for need in needs]
    silu_mul(*leaves).sum().backward()
    assert [leaf.grad is not None for leaf in leaves] == list(needs)


def test_gradcheck_twice(device):
    leaves = [drawn(3, 2, dtype=torch.float64).to(device).requires_grad_() for _ in range(2)]
    assert torch.autograd.gradcheck(silu_mul, leaves)
    assert torch.autograd.gradgradcheck(silu_mul, leaves)


def test_vmap_of_grad(device):
    gate, up = drawn(4, 3).to(device), drawn(4, 3).to(device)
    one = torch.func.grad(lambda g, u: silu_mul(g, u).sum())
    want = torch.func.grad(lambda g, u: (F.silu(g) * u).sum())(gate, up)
    torch.testing.assert_close(torch.vmap(one)(gate, up), want)


def test_errors(device):
    x = torch.ones(2, 3, device=device)
    with pytest.raises(ValueError, match=r"\[silu_mul\] gate is \[2, 3\].*up \[3\]"):
        silu_mul(x, x[0])
    with pytest.raises(ValueError, match=r"\[silu_mul\] .*torch.float64"):
        silu_mul(x, x.double())
    with pytest.raises(ValueError, match=r"\[SiLUMul\] \[2, 3\] has no"):
        SiLUMul()(x)
    assert silu_mul(x, x).shape == (2, 3)

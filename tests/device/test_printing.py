"""repr of a tensor is the CPU's with the device added, and printing leaves nothing behind."""

import pytest
import torch

import tiledev

TENSORS = {
    "float": lambda: torch.tensor([1.5, -2.25, float("nan")]),
    "scientific": lambda: torch.tensor([[1e-9, 1e9]]),
    "double": lambda: torch.tensor([1 / 3], dtype=torch.float64),
    "half": lambda: torch.tensor([1.0, 2.0]).half(),
    "bfloat16": lambda: torch.tensor([1.0, 2.0]).bfloat16(),
    "float8": lambda: torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    "int": lambda: torch.arange(6).view(2, 3),
    "bool": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.tensor([1 + 2j, -3j]),
    "conj": lambda: torch.tensor([1 + 2j, -3j]).conj(),
    "neg": lambda: torch.tensor([1 + 2j, -3j]).conj().imag,
    "scalar": lambda: torch.tensor(3.25),
    "empty": lambda: torch.empty(0, 3),
    "large": lambda: torch.arange(5000.0).view(50, 100),
    "strided": lambda: torch.arange(12.0).view(3, 4).t(),
    "gradient": lambda: torch.ones(2, requires_grad=True),
}


@pytest.mark.parametrize("name", TENSORS)
def test_repr(device, name):
    on_cpu = TENSORS[name]()
    on_device = on_cpu.detach().to(device).requires_grad_(on_cpu.requires_grad)
    text = repr(on_device)
    if device.type != "cpu":
        assert f"device='{on_device.device}'" in text
        text = text.replace(f", device='{on_device.device}'", "")
        text = text.replace(f"device='{on_device.device}', ", "")
    assert text.split() == repr(on_cpu).split()


def test_repr_of_a_result_and_of_a_parameter(device):
    weight = torch.nn.Parameter(torch.ones(2, device=device))
    assert repr(weight).startswith("Parameter containing:\ntensor([1., 1.]")
    assert "requires_grad=True" in repr(weight)
    assert "grad_fn=<MulBackward0>" in repr(weight * 2)
    assert f"{weight.sum():.2f} {weight[0]}" == "2.00 1.0"
    assert "1., 1." in str([weight.detach()])


def test_inside_of_transforms(device):
    seen = []

    def function(a):
        seen.append(repr(a))
        return a.square().sum()

    torch.func.grad(function)(torch.ones(2, device=device))
    torch.func.vmap(function)(torch.ones(2, 2, device=device))
    assert "1., 1." in seen[0]
    assert "BatchedTensor" in seen[1]


@pytest.mark.tiledev_only
def test_printing_is_one_readout():
    torch.tiledev.synchronize()
    a = torch.ones(4, device="tiledev") * 2.5
    other = torch.ones(4, device="tiledev") + 1
    before, fallbacks = tiledev._C.counters(), tiledev.fallback_stats()
    assert "2.5" in repr(a)
    after = tiledev._C.counters()
    assert after["flushes"] == before["flushes"] + 1
    assert after["nodes_recorded"] == before["nodes_recorded"]
    assert tiledev.fallback_stats() == fallbacks
    assert len(tiledev.pending_op_names()) == 2
    assert repr(a) == repr(a)
    assert tiledev._C.counters()["flushes"] == after["flushes"]
    assert other.tolist() == [2] * 4

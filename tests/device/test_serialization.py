"""Saving, loading and copying keep values, sharing, strides and kinds."""

import copy
import io
import pickle

import pytest
import torch


def save(value) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a write to `a` shows in `b`, tried out; restores what it wrote."""
    before = b.detach().clone()
    a.detach().view(-1)[0] += 1
    seen = not torch.equal(before.cpu(), b.detach().cpu())
    a.detach().view(-1)[0] -= 1
    return seen


class Tied(torch.nn.Module):
    """Two names for one weight, a buffer, and a view of the buffer."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, a):
        return self.second(self.first(a))


PLACES = [("cpu", "device"), ("device", "cpu"), ("device", "device"), ("cpu", None),
          ("device", None)]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), PLACES)
@pytest.mark.parametrize("weights_only", [True, False])
class TestSaveAndLoad:
    def load(self, value, target, device, weights_only):
        place = device if target == "device" else target
        return torch.load(save(value), map_location=place, weights_only=weights_only)

    def place(self, name, device):
        return device if name == "device" else torch.device("cpu")

    def test_values_and_kinds(self, device, source, target, weights_only):
        made = self.place(source, device)
        value = {
            "float": torch.randn(3, 4).to(made),
            "bfloat16": torch.randn(5).bfloat16().to(made),
            "int": torch.arange(4).to(made),
            "bool": torch.tensor([True, False]).to(made),
            "complex": torch.randn(3, dtype=torch.complex64).to(made),
            "empty": torch.empty(0, 3).to(made),
            "scalar": torch.tensor(2.5).to(made),
            "transposed": torch.arange(6.0).view(2, 3).to(made).t(),
            "pending": torch.ones(3).to(made) * 2 + 1,
            "gradient": torch.ones(2).to(made).requires_grad_(),
            "nested": [torch.ones(1).to(made), ("text", 3)],
        }
        loaded = self.load(value, target, device, weights_only)
        expected = self.place(source if target is None else target, device)
        for name, tensor in value.items():
            if name == "nested":
                continue
            assert loaded[name].device.type == expected.type, name
            assert loaded[name].stride() == tensor.stride(), name
            assert loaded[name].requires_grad == tensor.requires_grad
            assert torch.equal(loaded[name].cpu(), tensor.cpu()), name
        assert loaded["nested"][0].tolist() == [1]
        assert loaded["nested"][1] == ("text", 3)

    def test_sharing(self, device, source, target, weights_only):
        a = torch.arange(6.0).to(self.place(source, device))
        value = [a, a.view(2, 3), a[4:], a]
        loaded = self.load(value, target, device, weights_only)
        for before, after in zip(value, loaded, strict=True):
            assert after.storage_offset() == before.storage_offset()
        assert shares(loaded[0], loaded[1])
        assert shares(loaded[2], loaded[0])
        assert loaded[3] is loaded[0] or shares(loaded[3], loaded[0])

    def test_state_dict(self, device, source, target, weights_only):
        model = Tied().to(self.place(source, device))
        loaded = self.load(model.state_dict(), target, device, weights_only)
        assert shares(loaded["first.weight"], loaded["second.weight"])
        other = Tied().to(device)
        other.load_state_dict(loaded)
        assert other.first.weight is other.second.weight
        a = torch.ones(2, 4)
        expected = model(a.to(self.place(source, device))).detach().cpu()
        torch.testing.assert_close(other(a.to(device)).detach().cpu(), expected)


def test_map_location_by_function_and_dict(device):
    a = torch.arange(3.0)
    moved = torch.load(save(a), map_location=lambda storage, place: storage.to(device=device))
    assert moved.device.type == device.type
    assert moved.tolist() == [0, 1, 2]
    back = torch.load(save(a.to(device)), map_location={str(moved.device): "cpu"})
    assert back.device.type == "cpu"
    assert back.tolist() == [0, 1, 2]


def test_optimizer_state(device):
    def trained(place):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.ones(3, device=place))
        optimizer = torch.optim.Adam([weight], lr=0.1)
        weight.square().sum().backward()
        optimizer.step()
        return weight, optimizer

    weight, optimizer = trained("cpu")
    state = torch.load(save(optimizer.state_dict()), map_location=device)
    moved, other = trained(device)
    other.load_state_dict(state)
    assert other.state[moved]["exp_avg"].device.type == device.type
    for parameter, opt in ((weight, optimizer), (moved, other)):
        parameter.grad = torch.full_like(parameter, 0.5)
        opt.step()
    torch.testing.assert_close(moved.detach().cpu(), weight.detach())


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pickle(device, protocol):
    a = torch.arange(6.0, device=device) + 1
    loaded = pickle.loads(pickle.dumps([a, a[2:], {"p": torch.nn.Parameter(a)}], protocol))
    assert loaded[0].device.type == device.type
    assert loaded[1].tolist() == [3, 4, 5, 6]
    assert isinstance(loaded[2]["p"], torch.nn.Parameter)


class TestDeepcopy:
    def test_values_and_sharing(self, device):
        a = torch.arange(6.0, device=device) * 2
        copied, view = copy.deepcopy([a, a.view(2, 3)[1]])
        assert copied.tolist() == a.tolist()
        assert view.tolist() == [6, 8, 10]
        assert shares(copied, view) or shares(view, copied)
        assert not shares(copied, a)

    def test_parameters_and_gradients(self, device):
        weight = torch.nn.Parameter(torch.ones(3, device=device))
        (weight * 2).sum().backward()
        copied = copy.deepcopy(weight)
        assert isinstance(copied, torch.nn.Parameter)
        assert copied.tolist() == [1, 1, 1]
        leaf = torch.ones(3, device=device, requires_grad=True)
        (leaf * 2).sum().backward()
        copied = copy.deepcopy(leaf)
        assert copied.grad.tolist() == [2, 2, 2]
        copied.grad.zero_()
        assert leaf.grad.tolist() == [2, 2, 2]

    def test_module(self, device):
        model = Tied().to(device)
        copied = copy.deepcopy(model)
        assert copied.first.weight is copied.second.weight
        assert copied.first.weight is not model.first.weight
        a = torch.ones(2, 4, device=device)
        assert torch.equal(copied(a).cpu(), model(a).cpu())

    def test_strides(self, device):
        a = torch.arange(12.0, device=device).view(3, 4).t()
        copied = copy.deepcopy(a)
        assert copied.stride() == a.stride()
        assert torch.equal(copied.cpu(), a.cpu())


class TestModuleTo:
    def test_tied_weights_and_optimizer_references(self, device):
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        weight = model.first.weight
        model.to(device)
        assert model.first.weight is model.second.weight is weight
        assert weight.device.type == device.type
        assert model.table.device.type == device.type
        model(torch.ones(1, 4, device=device)).sum().backward()
        before = weight.detach().cpu().clone()
        optimizer.step()
        assert not torch.equal(weight.detach().cpu(), before)
        model.to("cpu")
        assert model.first.weight is model.second.weight is weight

    def test_gradients_go_along(self, device):
        model = torch.nn.Linear(2, 1)
        model(torch.ones(1, 2)).sum().backward()
        model.to(device)
        assert model.weight.grad.device.type == device.type
        assert model.weight.grad.tolist() == [[1, 1]]


class TestSafetensors:
    def test_round_trip(self, device, tmp_path):
        safetensors = pytest.importorskip("safetensors.torch")
        model = Tied().to(device)
        tensors = {"a": torch.arange(4.0, device=device) + 1, "b": model.table * 2}
        safetensors.save_file(tensors, tmp_path / "t.safetensors")
        loaded = safetensors.load_file(tmp_path / "t.safetensors")
        assert loaded["a"].to(device).tolist() == [1, 2, 3, 4]
        assert loaded["b"].tolist() == [0, 2, 4, 6, 8, 10]

    def test_shared_tensors_are_found(self, device, tmp_path):
        safetensors = pytest.importorskip("safetensors.torch")
        model = Tied().to(device)
        with pytest.raises(RuntimeError, match="share memory"):
            safetensors.save_file(model.state_dict(), tmp_path / "t.safetensors")
        safetensors.save_model(model, str(tmp_path / "t.safetensors"))
        other = Tied().to(device)
        safetensors.load_model(other, str(tmp_path / "t.safetensors"))
        assert torch.equal(other.first.weight.cpu(), model.first.weight.cpu())
        assert other.first.weight is other.second.weight


def test_data_pointers_tell_storages_apart(device):
    tensors = [torch.empty(4, device=device) for _ in range(10)]
    pointers = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    assert len(pointers) == 10
    assert 0 not in pointers
    assert tensors[0][1:].data_ptr() == tensors[0].data_ptr() + 4
    assert all(tensor.untyped_storage().nbytes() == 16 for tensor in tensors)

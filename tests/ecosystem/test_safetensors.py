"""safetensors' files of tensors on tiledev: docs/ecosystem.md."""

import pytest
import torch

from tests import support
from tests.ecosystem import networks

safetensors = pytest.importorskip(
    "safetensors", reason="safetensors, of the extra `ecosystem`, is not installed"
)

from safetensors import torch as files  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]


class Tied(torch.nn.Module):
    """Two names for one weight."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight


def moved(state, device):
    return {name: value.to(device) for name, value in state.items()}


def test_the_bytes_are_the_cpus(device, tmp_path):
    want = networks.classifier().state_dict()
    files.save_file(want, tmp_path / "cpu")
    files.save_file(moved(want, device), tmp_path / "device")
    assert (tmp_path / "device").read_bytes() == (tmp_path / "cpu").read_bytes()
    assert files.save(moved(want, device)) == files.save(want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(device, tmp_path, dtype):
    want = (torch.randn(3, 5) * 4).to(dtype)
    recorded = want.to(device).clone()
    files.save_file({"a": recorded, "empty": recorded[:0]}, tmp_path / "a")
    loaded = moved(files.load_file(tmp_path / "a"), device)
    assert loaded["a"].device.type == device.type
    assert loaded["a"].dtype == dtype
    assert torch.equal(loaded["a"].cpu(), want)
    assert loaded["empty"].shape == (0, 5)


def test_pending_work_is_saved(device, tmp_path):
    """Saving waits for what is recorded, and what follows does not reach the file."""
    a = torch.ones(1000, device=device)
    a.mul_(2).add_(1)
    files.save_file({"a": a}, tmp_path / "a")
    a.zero_()
    assert files.load_file(tmp_path / "a")["a"].eq(3).all()
    assert a.sum().item() == 0


def test_models(device, tmp_path):
    """`load_model` copies into a model where it is."""
    want = networks.classifier()
    files.save_model(want.to(device), str(tmp_path / "a"))
    got = networks.classifier().to(device)
    for weight in got.parameters():
        torch.nn.init.zeros_(weight)
    assert files.load_model(got, str(tmp_path / "a")) == (set(), [])
    assert got[0].weight.device.type == device.type
    networks.assert_states(got.state_dict(), want.state_dict())


def test_tied_weights(device, tmp_path):
    model = Tied().to(device)
    with pytest.raises(RuntimeError, match="share memory"):
        files.save_file(model.state_dict(), tmp_path / "a")
    files.save_model(model, str(tmp_path / "a"))
    other = Tied().to(device)
    files.load_model(other, str(tmp_path / "a"))
    assert other.first.weight is other.second.weight
    networks.assert_states(other.state_dict(), model.state_dict())


def test_slices(device, tmp_path):
    want = torch.arange(12.0).view(3, 4)
    files.save_file({"a": want.to(device)}, tmp_path / "a")
    with safetensors.safe_open(tmp_path / "a", framework="pt") as file:
        row = file.get_slice("a")[1:2].to(device)
    assert row.tolist() == [[4, 5, 6, 7]]


def test_pretrained(device, tmp_path):
    """What transformers saves from the device it loads to the device."""
    pytest.importorskip("transformers", reason="transformers, of the extra `ecosystem`")
    pytest.importorskip("accelerate", reason="accelerate, of the extra `ecosystem`")
    want = networks.language_model()
    want.to(device).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    got = type(want).from_pretrained(tmp_path, device_map=support.DEVICE)
    assert {weight.device.type for weight in got.parameters()} == {device.type}
    networks.assert_states(got.state_dict(), want.state_dict())


@pytest.mark.tiledev_only
def test_loading_to_the_device_is_refused(tmp_path):
    """docs/ecosystem.md quotes this."""
    files.save_file({"a": torch.ones(2)}, tmp_path / "a")
    with pytest.raises(safetensors.SafetensorError, match="device tiledev is invalid"):
        files.load_file(tmp_path / "a", device="tiledev")
    with (
        pytest.raises(safetensors.SafetensorError, match="device tiledev is invalid"),
        safetensors.safe_open(tmp_path / "a", framework="pt", device="tiledev"),
    ):
        pass

"""accelerate's loops run on tiledev as on the CPU: docs/ecosystem.md."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests import support
from tests.ecosystem import networks

accelerate = pytest.importorskip(
    "accelerate", reason="accelerate, of the extra `ecosystem`, is not installed"
)

from safetensors import SafetensorError  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_fallback")


class Run:
    """A loop of training, as accelerate's documentation has it."""

    def __init__(self, **options):
        self.accelerator = accelerate.Accelerator(**options)
        self.device = self.accelerator.device  # it is one for all accelerators of a process
        model = networks.classifier()
        optimizer = networks.adamw(model.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        loader = DataLoader(networks.samples(), batch_size=8, pin_memory=True)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, loader, scheduler
        )
        self.losses = []

    def epoch(self):
        self.model.train()
        for x, labels in self.loader:
            assert x.device.type == self.device.type
            with self.accelerator.accumulate(self.model):
                loss = F.cross_entropy(self.model(x), labels)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            self.losses.append(loss.detach())

    def accuracy(self):
        self.model.eval()
        hits = []
        for x, labels in self.loader:
            with torch.no_grad():
                predicted = self.model(x).argmax(dim=1)
            predicted, labels = self.accelerator.gather_for_metrics((predicted, labels))
            hits.append(predicted == labels)
        return torch.cat(hits).float().mean().item()

    def state(self):
        return self.accelerator.get_state_dict(self.model)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_loop(choose_device, accumulated):
    runs = []
    for device in (support.DEVICE, "cpu"):
        choose_device(device)
        runs.append(Run(gradient_accumulation_steps=accumulated))
        for _ in range(2):
            runs[-1].epoch()
    got, want = runs
    assert got.device.type == torch.device(support.DEVICE).type
    losses = [torch.stack(run.losses).cpu() for run in runs]
    torch.testing.assert_close(*losses, **networks.CLOSE)
    assert losses[0][-1] < losses[0][0]
    networks.assert_states(got.state(), want.state(), **networks.CLOSE)
    assert got.accuracy() == want.accuracy()


def test_save_and_load(choose_device, tmp_path):
    """A run that goes on from `save_state` has the bits of one without a break."""
    choose_device(support.DEVICE)
    whole = Run()
    whole.epoch()
    whole.accelerator.save_state(str(tmp_path))
    whole.epoch()
    choose_device(support.DEVICE)
    resumed = Run()
    resumed.accelerator.load_state(str(tmp_path))
    resumed.epoch()
    networks.assert_states(resumed.state(), whole.state())


def test_bfloat16(choose_device):
    runs = []
    for device in (support.DEVICE, "cpu"):
        choose_device(device)
        runs.append(Run(mixed_precision="bf16"))
        runs[-1].epoch()
        with runs[-1].accelerator.autocast():
            x = torch.ones(2, 8, device=device)
            assert (x @ x.t()).dtype == torch.bfloat16
    losses = [torch.stack(run.losses).cpu() for run in runs]
    torch.testing.assert_close(*losses, rtol=0, atol=0.02)


@pytest.mark.tiledev_only
def test_offloading():
    """Layers that are sent to the CPU keep their weights there, and compute on the device."""
    model = networks.classifier().eval()
    x, _ = networks.samples()[:8]
    want = model(x)
    spread = accelerate.dispatch_model(model, {"0": "tiledev", "1": "cpu", "2": "cpu", "3": "cpu"})
    assert spread[0].weight.device.type == "tiledev"
    assert spread[3].weight.device.type == "meta"
    for _ in range(2):
        got = spread(x.to("tiledev"))
        assert got.device.type == "tiledev"
        torch.testing.assert_close(got.cpu(), want, **networks.CLOSE)


@pytest.mark.tiledev_only
def test_float16_is_refused(choose_device):
    choose_device("tiledev")
    with pytest.raises(ValueError, match=r"fp16 mixed precision requires a device in.*tiledev"):
        accelerate.Accelerator(mixed_precision="fp16")


@pytest.mark.tiledev_only
def test_default_is_the_cpu(choose_device, monkeypatch):
    choose_device("tiledev")
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE")
    assert accelerate.Accelerator().device.type == "cpu"


@pytest.mark.tiledev_only
def test_loading_to_the_device_is_refused(choose_device, tmp_path):
    """What it calls in safetensors refuses; loading before dispatching does not."""
    choose_device("tiledev")
    accelerate.Accelerator().save_model(networks.classifier(), tmp_path)
    with pytest.raises(SafetensorError, match="device tiledev is invalid"):
        accelerate.load_checkpoint_and_dispatch(
            networks.classifier(), tmp_path, device_map={"": "tiledev"}
        )
    model = networks.classifier()
    accelerate.load_checkpoint_in_model(model, tmp_path)
    dispatched = accelerate.dispatch_model(model, {"": "tiledev"})
    networks.assert_states(dispatched.state_dict(), networks.classifier().state_dict())

"""PyTorch Lightning trains on tiledev what it trains on the CPU: docs/ecosystem.md."""

import logging
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests import support
from tests.ecosystem import networks

pl = pytest.importorskip(
    "lightning.pytorch", reason="Lightning, of the extra `ecosystem`, is not installed"
)

from lightning.pytorch.callbacks import DeviceStatsMonitor, ModelCheckpoint  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("no_fallback"),
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers", "ignore:.*LeafSpec", "ignore:.*ckpt_path"
    ),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(pl.LightningModule):
    """Trains networks.classifier and keeps what it saw."""

    def __init__(self):
        super().__init__()
        self.network = networks.classifier()
        self.losses, self.devices, self.dtypes = [], set(), set()

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, index):
        x, labels = batch
        logits = self(x)
        loss = F.cross_entropy(logits, labels)
        self.log("loss", loss)
        self.losses.append(loss.detach())
        self.devices |= {x.device.type, self.network[0].weight.device.type}
        self.dtypes.add(logits.dtype)
        return loss

    def validation_step(self, batch, index):
        x, labels = batch
        self.log("accuracy", (self(x).argmax(dim=1) == labels).float().mean())

    def predict_step(self, batch, index):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer = networks.adamw(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def where(device):
    """The Trainer's arguments for a device."""
    if device == "cpu":
        return {"accelerator": "cpu"}
    from tiledev.integrations.lightning import TiledevStrategy

    return {"strategy": TiledevStrategy()}


def trainer(device, folder, **options):
    settings = {
        "max_epochs": 2,
        "gradient_clip_val": 1.0,
        "default_root_dir": folder,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
    }
    return pl.Trainer(**where(device), **(settings | options))


def loader():
    return DataLoader(networks.samples(), batch_size=8)


def fit(device, folder, **options):
    model = Classifier()
    its_trainer = trainer(device, folder, **options)
    its_trainer.fit(model, loader(), loader())
    return model, its_trainer


@pytest.mark.parametrize("accumulated", [1, 2])
def test_fit(tmp_path, accumulated):
    options = {"accumulate_grad_batches": accumulated}
    (got, got_trainer), (want, want_trainer) = (
        fit(device, tmp_path, **options) for device in (support.DEVICE, "cpu")
    )
    assert got.devices == {torch.device(support.DEVICE).type}
    assert len(got.losses) == 10
    losses = [torch.stack(model.losses).cpu() for model in (got, want)]
    torch.testing.assert_close(*losses, **networks.CLOSE)
    assert losses[0][-1] < losses[0][0]
    networks.assert_states(got.state_dict(), want.state_dict(), **networks.CLOSE)
    metrics = [its.callback_metrics for its in (got_trainer, want_trainer)]
    assert metrics[0]["accuracy"] == metrics[1]["accuracy"]


def test_predict(tmp_path):
    got, want = (
        torch.cat(trainer(device, tmp_path).predict(Classifier(), loader())).cpu()
        for device in (support.DEVICE, "cpu")
    )
    torch.testing.assert_close(got, want, **networks.CLOSE)


def test_checkpoint(tmp_path):
    """A run that goes on from Lightning's checkpoint has the bits of one without a break."""
    save = {"enable_checkpointing": True, "callbacks": [ModelCheckpoint(tmp_path, "half")]}
    fit(support.DEVICE, tmp_path, max_epochs=1, **save)
    resumed = Classifier()
    trainer(support.DEVICE, tmp_path).fit(
        resumed, loader(), loader(), ckpt_path=tmp_path / "half.ckpt"
    )
    assert len(resumed.losses) == 5  # the second epoch's
    whole, _ = fit(support.DEVICE, tmp_path)
    networks.assert_states(resumed.state_dict(), whole.state_dict())


@pytest.mark.tiledev_only
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("bf16-mixed", torch.bfloat16),
        ("16-mixed", torch.float16),
        ("bf16-true", torch.bfloat16),
        ("64-true", torch.float64),
    ],
)
def test_precision(tmp_path, precision, dtype):
    got, its_trainer = fit(support.DEVICE, tmp_path, precision=precision)
    assert got.dtypes == {dtype}
    if precision == "16-mixed":
        assert its_trainer.precision_plugin.scaler.is_enabled()
    want, _ = fit("cpu", tmp_path)
    losses = [torch.stack(model.losses).cpu().float() for model in (got, want)]
    torch.testing.assert_close(*losses, rtol=0, atol=0.03)


@pytest.mark.tiledev_only
def test_device_stats(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    fit(
        "tiledev",
        tmp_path,
        logger=logger,
        callbacks=[DeviceStatsMonitor()],
        log_every_n_steps=1,
    )
    names = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0].split(",")
    assert any(
        name.startswith("DeviceStatsMonitor.on_train_batch_end/allocated_bytes") for name in names
    ), names


@pytest.mark.tiledev_only
class TestChoice:
    """What Lightning does with a device that it does not know, as docs/ecosystem.md says."""

    def test_by_name(self, tmp_path):
        import tiledev.integrations.lightning  # noqa: F401

        its = pl.Trainer(accelerator="tiledev", strategy="tiledev", logger=False)
        assert its.strategy.root_device == torch.device("tiledev", 0)

    def test_unknown_name(self):
        with pytest.raises(ValueError, match=r"invalid accelerator name: `accelerator='tiled"):
            pl.Trainer(accelerator="tiled", logger=False)

    def test_accelerator_alone(self, tmp_path):
        from tiledev.integrations.lightning import TiledevAccelerator

        its = pl.Trainer(
            accelerator=TiledevAccelerator(), max_steps=1, logger=False, default_root_dir=tmp_path
        )
        with pytest.raises(ValueError, match=r"trains on 'cpu'.*strategy=TiledevStrategy\(\)"):
            its.fit(Classifier(), loader(), loader())

    def test_devices(self):
        with pytest.raises(ValueError, match="devices=2: there is one device tiledev"):
            pl.Trainer(**where("tiledev"), devices=2, logger=False)

    def test_not_imported_on_its_own(self):
        from tests.device.scripts import check

        check("import sys, torch, tiledev; assert 'lightning' not in sys.modules")


@pytest.mark.tiledev_only
def test_docstring():
    import doctest

    from tiledev.integrations import lightning

    results = doctest.testmod(lightning)
    assert results.attempted > 3
    assert results.failed == 0

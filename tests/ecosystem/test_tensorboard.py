"""TensorBoard's writer takes tensors on tiledev: docs/ecosystem.md."""

import pytest
import torch

from tests import support
from tests.ecosystem import networks

pytest.importorskip("tensorboard", reason="tensorboard, of the extra `ecosystem`, is not installed")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
from torch.utils.tensorboard import SummaryWriter

pytestmark = [
    pytest.mark.usefixtures("no_fallback"),
    pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning"),  # add_graph
]


def log(folder, device):
    """Logs a bit of training; returns what TensorBoard reads."""
    model = networks.classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = (value.to(device) for value in networks.samples()[:])
    with SummaryWriter(folder) as writer:
        for step in range(4):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            writer.add_scalar("loss", loss, step)
            writer.add_histogram("weight", model[0].weight, step)
            writer.add_histogram("gradient", model[0].weight.grad, step)
        image = torch.arange(48.0).view(3, 4, 4) / 48
        writer.add_image("image", image.to(device))
        writer.add_tensor("bias", model[0].bias.detach())
        writer.add_pr_curve("curve", labels == 0, model(x).softmax(dim=1)[:, 0])
        writer.add_embedding(x, metadata=labels.tolist())
        writer.add_graph(model, x)
    events = EventAccumulator(str(folder), size_guidance={"histograms": 0})
    events.Reload()
    return events


@pytest.fixture
def logged(device, tmp_path):
    return log(tmp_path / "device", device), log(tmp_path / "cpu", torch.device("cpu"))


def test_scalars(logged):
    got, want = ([event.value for event in events.Scalars("loss")] for events in logged)
    assert len(got) == 4
    assert got == pytest.approx(want, abs=1e-5)
    assert got[3] < got[0]


@pytest.mark.parametrize("name", ["weight", "gradient"])
def test_histograms(logged, name):
    got, want = (events.Histograms(name) for events in logged)
    assert len(got) == 4
    for mine, other in zip(got, want, strict=True):
        for field in ("min", "max", "num", "sum", "sum_squares"):
            value = getattr(other.histogram_value, field)
            assert getattr(mine.histogram_value, field) == pytest.approx(value, abs=1e-4), field


def test_the_rest(logged):
    got, want = logged
    assert got.Tags() == want.Tags()
    assert got.Tags()["graph"]
    images = [events.Images("image")[0].encoded_image_string for events in logged]
    assert images[0] == images[1]
    bias, other = (make_ndarray(events.Tensors("bias")[0].tensor_proto) for events in logged)
    assert bias.shape == (16,)
    assert bias.tolist() == pytest.approx(other.tolist(), abs=1e-5)


def test_embedding(logged, tmp_path):
    got, want = (next((tmp_path / place).rglob("tensors.tsv")) for place in ("device", "cpu"))
    assert got.read_text() == want.read_text()


def scalars(folder):
    """All scalars under a folder, by name."""
    (file,) = folder.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [event.value for event in events.Scalars(name)] for name in names}


def test_trainer(choose_device, monkeypatch, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers, of `ecosystem`")
    found = []
    for device in (support.DEVICE, "cpu"):
        choose_device(device)
        folder = tmp_path / device
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder))
        options = {"max_steps": 3, "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True}
        arguments = transformers.TrainingArguments(
            str(folder), report_to=["tensorboard"], **options
        )
        data = networks.Sentences()
        transformers.Trainer(networks.language_model(), arguments, train_dataset=data).train()
        found.append(scalars(folder))
    got, want = found
    assert got.keys() == want.keys()
    assert len(got["train/loss"]) == 3
    assert got["train/loss"] == pytest.approx(want["train/loss"], abs=1e-4)


@pytest.mark.tiledev_only
def test_lightning(tmp_path):
    pl = pytest.importorskip("lightning.pytorch", reason="lightning, of `ecosystem`")
    from lightning.pytorch.loggers import TensorBoardLogger

    from tests.ecosystem import test_lightning

    for device in ("tiledev", "cpu"):
        pl.Trainer(
            **test_lightning.where(device),
            max_steps=3,
            log_every_n_steps=1,
            logger=TensorBoardLogger(tmp_path / device),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(test_lightning.Classifier(), test_lightning.loader(), test_lightning.loader())
    got, want = (scalars(tmp_path / device)["loss"] for device in ("tiledev", "cpu"))
    assert len(got) == 3
    assert got == pytest.approx(want, abs=1e-4)

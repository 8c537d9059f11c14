"""Hugging Face's Trainer trains on tiledev what it trains on the CPU: docs/ecosystem.md."""

import pytest
import torch

from tests import support
from tests.ecosystem import networks
from tests.ecosystem.test_docs import sections

transformers = pytest.importorskip(
    "transformers", reason="transformers, of the extra `ecosystem`, is not installed"
)
pytest.importorskip("accelerate", reason="accelerate, of the extra `ecosystem`, is not installed")

pytestmark = pytest.mark.usefixtures("no_fallback")
QUIET = {"report_to": [], "disable_tqdm": True, "logging_strategy": "steps", "logging_steps": 1}


def make(folder, model=None, **options):
    """A Trainer on the device that `choose_device` chose."""
    settings = {
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "adam_epsilon": 1e-4,
        "save_strategy": "no",
        "seed": 1,
    }
    arguments = transformers.TrainingArguments(str(folder), **(settings | QUIET | options))
    model = model or networks.language_model()
    data = networks.Sentences()
    return transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data)


def losses(trainer):
    return torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


def assert_same(got, want):
    assert len(losses(got)) == 6
    torch.testing.assert_close(losses(got), losses(want), **networks.CLOSE)
    networks.assert_states(got.model.state_dict(), want.model.state_dict(), **networks.CLOSE)


@pytest.fixture
def train(choose_device, tmp_path):
    """Returns a function that trains on a device and returns the Trainer."""

    def run(device, resume=None, **options):
        choose_device(device)
        trainer = make(tmp_path / device, **options)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine", "warmup_steps": 2},
        {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.1},
        {"activation_checkpointing": True, "label_smoothing_factor": 0.1},
    ],
    ids=["default", "accumulated", "sgd", "checkpointed"],
)
def test_train(train, options):
    got, want = (train(device, **options) for device in (support.DEVICE, "cpu"))
    assert got.args.device.type == torch.device(support.DEVICE).type
    assert {weight.device.type for weight in got.model.parameters()} == {got.args.device.type}
    assert_same(got, want)


def test_evaluate_and_predict(choose_device, tmp_path):
    found = []
    for device in (support.DEVICE, "cpu"):
        choose_device(device)
        trainer = make(tmp_path)
        trainer.compute_metrics = lambda given: {
            "accuracy": float((given.predictions.argmax(-1) == given.label_ids).mean())
        }
        answer = trainer.predict(networks.Sentences())
        found.append((trainer.evaluate(), torch.from_numpy(answer.predictions)))
    (got, got_logits), (want, want_logits) = found
    assert got["eval_loss"] == pytest.approx(want["eval_loss"], abs=1e-4)
    assert got["eval_accuracy"] == want["eval_accuracy"]
    torch.testing.assert_close(got_logits, want_logits, **networks.CLOSE)


def test_resume(train):
    """A run that goes on from Trainer's checkpoint has the bits of one without a break."""
    whole = train(support.DEVICE, save_strategy="steps", save_steps=3)
    folder = f"{whole.args.output_dir}/checkpoint-3"
    resumed = train(support.DEVICE, resume=folder)
    assert resumed.state.global_step == 6
    networks.assert_states(resumed.model.state_dict(), whole.model.state_dict())


@pytest.mark.tiledev_only
def test_resume_with_dropout(choose_device, tmp_path):
    """Trainer does not keep the device's generator; the callback of docs/ecosystem.md does."""
    choose_device("tiledev")
    names = {}
    exec(sections()["Hugging Face Trainer"][1], names)

    def run(resume, *callbacks):
        model = networks.language_model(dropout=0.3)
        trainer = make(tmp_path, model, save_strategy="steps", save_steps=3)
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-3" if resume else None)
        return losses(trainer)

    keep = names["KeepGenerator"]()
    whole = run(False, keep)
    assert torch.equal(run(True, keep), whole)
    assert not torch.equal(run(True), whole)  # needs no callback any more: change the page


def test_keep_the_best(train):
    """`load_best_model_at_end` loads into a model on the device."""
    steps = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 3, "save_steps": 3}
    got, want = (
        train(device, load_best_model_at_end=True, **steps) for device in (support.DEVICE, "cpu")
    )
    assert got.state.best_metric == pytest.approx(want.state.best_metric, abs=1e-4)
    networks.assert_states(got.model.state_dict(), want.model.state_dict(), **networks.CLOSE)


def test_bfloat16(train, monkeypatch):
    """The way of docs/ecosystem.md, since `bf16=True` asks for a GPU that it knows."""
    exact = train("cpu")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    got, want = (train(device) for device in (support.DEVICE, "cpu"))
    assert got.accelerator.mixed_precision == "bf16"
    torch.testing.assert_close(losses(got), losses(want), rtol=0, atol=0.01)
    assert not torch.allclose(losses(got), losses(exact), rtol=0, atol=1e-6)


def test_devices_by_name(device, tmp_path):
    kind = type(networks.language_model())
    networks.language_model().save_pretrained(tmp_path)
    model = kind.from_pretrained(tmp_path, device_map=support.DEVICE)
    assert model.device.type == device.type
    pipe = transformers.pipeline("text-generation", str(tmp_path), device=support.DEVICE)
    assert pipe.model.device.type == pipe.device.type == device.type
    assert kind.from_pretrained(tmp_path, device_map="auto").device.type == "cpu"


@pytest.mark.tiledev_only
class TestChoice:
    """What Trainer does with a device that it does not know, as docs/ecosystem.md says."""

    def test_default_is_the_cpu(self, choose_device, monkeypatch, tmp_path):
        choose_device("tiledev")
        monkeypatch.delenv("ACCELERATE_TORCH_DEVICE")
        model = networks.language_model().to("tiledev")
        trainer = make(tmp_path, model)
        assert trainer.args.device.type == "cpu"
        assert trainer.model.device.type == "cpu"  # it moves the model, without a word

    def test_bf16_is_refused(self, choose_device, tmp_path):
        choose_device("tiledev")
        with pytest.raises(ValueError, match="Your setup doesn't support bf16/gpu"):
            make(tmp_path, bf16=True)

    def test_fp16_is_refused(self, choose_device, tmp_path):
        choose_device("tiledev")
        with pytest.raises(ValueError, match=r"fp16 mixed precision requires a device in.*tiledev"):
            make(tmp_path, fp16=True)

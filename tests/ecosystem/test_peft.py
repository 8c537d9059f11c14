"""LoRA of peft on tiledev gives the adapters that it gives on the CPU: docs/ecosystem.md."""

import pytest
import torch

from tests import support
from tests.ecosystem import networks

peft = pytest.importorskip("peft", reason="peft, of the extra `ecosystem`, is not installed")

pytestmark = [
    pytest.mark.usefixtures("no_fallback"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]
KINDS = {"lora": {}, "dora": {"use_dora": True}, "rslora": {"use_rslora": True}}


def adapted(device, on_device_first=True, **options):
    """The language model with an adapter that is not zero, on the device."""
    base = networks.language_model()
    if on_device_first:
        base = base.to(device)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn"], "fan_in_fan_out": True}
    support.seed(3)
    return peft.get_peft_model(base, peft.LoraConfig(**settings, **options)).to(device)


def train(model, device, steps=5):
    tokens = networks.Sentences(4).tokens.to(device)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, eps=1e-4)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


def logits(model, device):
    with torch.no_grad():
        return model.eval()(input_ids=networks.Sentences(4).tokens.to(device)).logits.cpu()


@pytest.mark.parametrize("on_device_first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_train(kind, on_device_first):
    devices = (support.DEVICE, "cpu")
    got, want = (adapted(device, on_device_first, **KINDS[kind]) for device in devices)
    assert {p.device.type for p in got.parameters()} == {torch.device(support.DEVICE).type}
    frozen = networks.on_cpu(got.get_base_model().transformer.wte.state_dict())
    losses = train(got, support.DEVICE), train(want, "cpu")
    torch.testing.assert_close(*losses, **networks.CLOSE)
    assert losses[0][-1] < losses[0][0]
    networks.assert_states(
        peft.get_peft_model_state_dict(got), peft.get_peft_model_state_dict(want), **networks.CLOSE
    )
    networks.assert_states(got.get_base_model().transformer.wte.state_dict(), frozen)


@pytest.fixture
def trained():
    model = adapted(support.DEVICE)
    train(model, support.DEVICE, steps=2)
    return model


def test_save_and_load(trained, tmp_path):
    trained.save_pretrained(tmp_path)
    base = networks.language_model().to(support.DEVICE)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path)
    assert {p.device.type for p in loaded.parameters()} == {torch.device(support.DEVICE).type}
    assert torch.equal(logits(loaded, support.DEVICE), logits(trained, support.DEVICE))


def test_disable_and_merge(trained):
    plain = logits(networks.language_model().to(support.DEVICE), support.DEVICE)
    with trained.disable_adapter():
        assert torch.equal(logits(trained, support.DEVICE), plain)
    adapted_logits = logits(trained, support.DEVICE)
    assert not torch.allclose(adapted_logits, plain, rtol=0, atol=1e-3)
    merged = trained.merge_and_unload()
    assert not any("lora" in name for name, _ in merged.named_parameters())
    torch.testing.assert_close(logits(merged, support.DEVICE), adapted_logits, **networks.CLOSE)


def test_two_adapters(trained):
    trained.add_adapter("second", trained.peft_config["default"])
    first = logits(trained, support.DEVICE)
    trained.set_adapter("second")
    second = logits(trained, support.DEVICE)  # its B is zero still
    assert not torch.equal(first, second)
    trained.set_adapter("default")
    assert torch.equal(logits(trained, support.DEVICE), first)

"""The small GPT of the examples and benchmarks."""

import pytest
import torch
import torch.nn.functional as F

from tiledev.models import GPT, GPTConfig

SMALL = GPTConfig(layers=2, width=16, heads=2, length=8, vocabulary=11)


def made(seed=0):
    torch.manual_seed(seed)
    return GPT(SMALL)


def test_weights():
    shapes = {name: tuple(weight.shape) for name, weight in made().named_parameters()}
    assert shapes["tokens.weight"] == shapes["head.weight"] == (11, 16)
    assert shapes["positions"] == (8, 16)
    assert shapes["blocks.1.attention.into.weight"] == (48, 16)
    assert len(shapes) == 3 + 2 + 2 * 12
    assert made().tokens.weight.std().item() == pytest.approx(0.02, rel=0.2)


def test_a_token_sees_none_after_it():
    model, tokens = made(), torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    got, want = model(changed), model(tokens)
    torch.testing.assert_close(got[:, :5], want[:, :5])
    assert (got[:, 5:] - want[:, 5:]).abs().amax(-1).min() > 1e-4


def test_shorter_and_longer_sequences():
    model = made()
    assert model(torch.zeros(3, 5, dtype=torch.int64)).shape == (3, 5, 11)
    with pytest.raises(ValueError, match=r"\[GPT\] got 9 tokens a sequence: at most 8"):
        model(torch.zeros(3, 9, dtype=torch.int64))


@pytest.mark.parametrize("size", ["layers", "width", "heads", "length", "vocabulary"])
def test_sizes_below_one(size):
    with pytest.raises(ValueError, match=rf"\[GPTConfig\] {size} is 0"):
        GPTConfig(**{size: 0})


def test_width_must_be_a_multiple_of_heads():
    with pytest.raises(ValueError, match=r"\[GPTConfig\] width is 10 with 4 heads"):
        GPTConfig(width=10, heads=4)


def test_on_the_device(device):
    tokens, targets = torch.randint(11, (4, 8)), torch.randint(11, (4, 8))
    answers = []
    for place in ("cpu", device):
        model = made().to(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            logits = model(tokens.to(place))
            loss = F.cross_entropy(logits.flatten(0, 1), targets.to(place).flatten())
            loss.backward()
            optimizer.step()
        answers.append([loss.detach().cpu(), *(p.detach().cpu() for p in model.parameters())])
    torch.testing.assert_close(answers[1], answers[0], rtol=0, atol=1e-5)

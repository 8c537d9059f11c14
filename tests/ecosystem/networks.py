"""Small networks and data that the tests of all libraries share, always from the same seeds."""

import functools
from collections.abc import Iterable

import torch
from torch import nn

CLOSE = {"rtol": 0.0, "atol": 1e-4}
CLASSES = 3


def classifier() -> nn.Sequential:
    """Two layers on 8 features, with batch norm between them."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)]
        return nn.Sequential(*layers)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """AdamW with an eps above the rounding of gradients that are 0 in exact numbers.

    Such is the gradient of a bias that batch norm takes away again.
    """
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-4)


def samples(count: int = 40) -> torch.utils.data.TensorDataset:
    """Rows of 8 features, and labels that a network can learn from them."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, x[:, :CLASSES].argmax(dim=1))


def language_model(dropout: float = 0.0) -> nn.Module:
    """A GPT-2 of two layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    dropouts = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), dropout)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, **dropouts, bos_token_id=0, eos_token_id=0)
    config.loss_type = "ForCausalLM"
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return GPT2LMHeadModel(config)


class Sentences(torch.utils.data.Dataset):
    """Rows of 12 tokens."""

    def __init__(self, count: int = 24) -> None:
        self.tokens = torch.randint(50, (count, 12), generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def on_cpu(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of a state dict's tensors on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def assert_states(got: dict, want: dict, **tolerance: float) -> None:
    """Fails unless both have the same names and values, to the bit without a tolerance."""
    got, want = on_cpu(got), on_cpu(want)
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(
            got[name],
            value,
            **(tolerance or {"rtol": 0.0, "atol": 0.0}),
            msg=functools.partial("{}: {}".format, name),
        )

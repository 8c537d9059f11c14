"""Trains a GPT on the characters of a story, then lets it write.

What it shows: a training loop that reads nothing back between its printed lines, an optimizer that
clips gradients inside its step, and sampling whose every step has the same shapes, so that one plan
serves for all of them.

    python examples/char_gpt.py                # 800 steps: about a minute
    python examples/char_gpt.py --steps 20 --compare

Prints the mean loss of each 50 steps, and 300 characters. The loss starts near 3.8, a guess among
all 44 characters; it falls below 1 as the network learns the words of the story by heart:

    [tiledev] step   50  loss 2.5
    ...
    [tiledev] step  800  loss 0.2
    ... "I turned the wheel," said Marta, "and the bird turned me." ...
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from common import Losses, main
from tiledev.models import GPT, GPTConfig
from tiledev.training import AdamW, cross_entropy

STORY = Path(__file__).parent / "data" / "lighthouse.txt"
BATCH, LENGTH = 16, 64
WRITTEN = 300  # characters


def train(device: str, steps: int, seed: int) -> list[float]:
    """Trains on windows of the story and prints a sample; returns the loss of each step."""
    text = STORY.read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(character) for character in text])

    torch.manual_seed(seed)
    sizes = GPTConfig(layers=2, width=96, heads=4, length=LENGTH, vocabulary=len(alphabet))
    model = GPT(sizes).to(device)
    optimizer = AdamW(model.parameters(), lr=3e-3, max_grad_norm=1.0)
    losses = Losses(device, every=50)
    for _ in range(steps):
        windows = draw_windows(codes).to(device)  # [BATCH, LENGTH + 1]
        optimizer.zero_grad()
        loss = cross_entropy(model(windows[:, :-1]), windows[:, 1:])  # each next character
        loss.backward()
        optimizer.step()  # starts the step's work and returns
        losses.add(loss)

    torch.manual_seed(seed)  # each device has a generator: from here on both draw the same
    written = sample(model, codes[:LENGTH].to(device))
    print("".join(alphabet[code] for code in written), flush=True)
    return losses.read()


def draw_windows(codes: Tensor) -> Tensor:
    """Returns BATCH random pieces of the story, [BATCH, LENGTH + 1]."""
    starts = torch.randint(len(codes) - LENGTH, (BATCH, 1))
    return codes[starts + torch.arange(LENGTH + 1)]


@torch.no_grad()
def sample(model: GPT, prompt: Tensor) -> list[int]:
    """Writes on from LENGTH codes. The window slides, and its shape stays: one plan serves all."""
    window = prompt.unsqueeze(0)  # [1, LENGTH]
    written = []
    for _ in range(WRITTEN):
        chances = torch.softmax(model(window)[:, -1] / 0.5, dim=-1)  # 0.5: rather the likely ones
        code = torch.multinomial(chances, 1)  # [1, 1]
        window = torch.cat([window[:, 1:], code], dim=1)
        written.append(code)
    codes: list[int] = torch.cat(written, dim=1)[0].tolist()  # the one readout
    return codes


if __name__ == "__main__":
    sys.exit(main(__doc__, train, length=800))

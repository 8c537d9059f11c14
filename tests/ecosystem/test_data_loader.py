"""DataLoader with pinned memory in front of tiledev: docs/ecosystem.md."""

import pytest
import torch
from torch.utils.data import DataLoader

from tests.ecosystem import networks

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Rows:
    """A batch of a class of its own, which pins itself."""

    def __init__(self, samples):
        self.x = torch.stack([x for x, _ in samples])
        self.pinned = False

    def pin_memory(self):
        self.x, self.pinned = self.x.pin_memory(), True
        return self


def train(device, workers, **options):
    """Two epochs; returns weights and losses."""
    model = networks.classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        networks.samples(),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(5),
        num_workers=workers,
        timeout=60 if workers else 0,
        **options,
    )
    losses = []
    for _ in range(2):
        for x, labels in loader:
            assert x.is_pinned() == labels.is_pinned() == bool(options.get("pin_memory"))
            x, labels = (value.to(device, non_blocking=True) for value in (x, labels))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return model.state_dict() | {"losses": torch.stack(losses)}


@WORKERS
@pytest.mark.tiledev_only
def test_train(device, workers):
    options = {"persistent_workers": workers > 0}
    got = train(device, workers, pin_memory=True, **options)
    networks.assert_states(got, train(device, workers, **options))  # pinning changes no bit
    networks.assert_states(got, train("cpu", workers, **options), **networks.CLOSE)
    assert got["losses"][-1] < got["losses"][0]


def test_a_batch_that_is_reused(device):
    """A copy that does not block still reads what was there when it was recorded."""
    pinned = torch.ones(1000).pin_memory() if device.type == "tiledev" else torch.ones(1000)
    copies = []
    for step in range(4):
        pinned.fill_(step)
        copies.append(pinned.to(device, non_blocking=True, copy=True) * 1)
    assert [copy.sum().item() for copy in copies] == [0, 1000, 2000, 3000]


@pytest.mark.tiledev_only
@WORKERS
def test_batches_of_other_classes(device, workers):
    loader = DataLoader(
        networks.samples(8), batch_size=4, collate_fn=Rows, pin_memory=True, num_workers=workers
    )
    for batch in loader:
        assert batch.pinned
        assert batch.x.is_pinned()
        assert torch.equal(batch.x.to(device).cpu(), batch.x)


@pytest.mark.tiledev_only
def test_nested_batches(device):
    data = [{"a": torch.ones(2) * i, "rest": (torch.tensor(i), f"row {i}")} for i in range(4)]
    (batch,) = DataLoader(data, batch_size=4, pin_memory=True)
    assert batch["a"].is_pinned()
    assert batch["rest"][0].is_pinned()
    assert batch["rest"][1] == tuple(f"row {i}" for i in range(4))
    assert batch["a"].to(device).sum(dim=1).tolist() == [0, 2, 4, 6]

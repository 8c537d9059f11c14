"""Tries an installed tiledev that nobody imports: a tensor, and three steps of training."""

from pathlib import Path

import torch

EXPECTED_STEPS = 3


def train(device: str) -> list[float]:
    """Returns the losses of a small model trained on the device."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model.to(device)
    inputs, targets = torch.randn(32, 8).to(device), torch.randint(4, (32,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(EXPECTED_STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Checks values against the CPU and that the package is the installed one."""
    assert torch.zeros(3, device="tiledev").add(1).tolist() == [1.0, 1.0, 1.0]
    torch.testing.assert_close(train("tiledev"), train("cpu"))
    import tiledev

    assert "site-packages" in Path(tiledev.__file__).parts, tiledev.__file__
    print(f"tiledev {tiledev.__version__} works from {Path(tiledev.__file__).parent}")


if __name__ == "__main__":
    main()

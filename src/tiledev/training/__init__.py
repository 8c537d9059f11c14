"""Training: loss, optimizers, a step, and checkpoints, each a thin layer over PyTorch's.

Plain `torch.optim`, `torch.amp` and `F.cross_entropy` work on the device as they are. What is here
adds float32 master weights, clipping inside the step, and mixed precision without a readback.

Example:
    >>> from tiledev.training import AdamW, cross_entropy
    >>> model = torch.nn.Linear(4, 3).to("tiledev")
    >>> optimizer = AdamW(model.parameters(), lr=1e-2, max_grad_norm=1.0)
    >>> x, labels = torch.ones(2, 4).to("tiledev"), torch.tensor([0, 2]).to("tiledev")
    >>> loss = cross_entropy(model(x), labels)
    >>> loss.backward()
    >>> optimizer.step()
"""

from tiledev.training.checkpoint import load_checkpoint, save_checkpoint
from tiledev.training.full_batch import record_step, train_full_batch_step
from tiledev.training.loss import cross_entropy
from tiledev.training.optimizers import SGD, Adam, AdamW
from tiledev.training.weights import clone_model_weights, max_weight_delta

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "clone_model_weights",
    "cross_entropy",
    "load_checkpoint",
    "max_weight_delta",
    "record_step",
    "save_checkpoint",
    "train_full_batch_step",
]

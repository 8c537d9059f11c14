"""A network on the device under test against the same one on the CPU, under three tilings."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tests import support
from tests.models.stock import Stock

TILINGS = ("auto", "named", "tiny")
TILES = {"batch": 2, "sequence": 3, "hidden": 5, "heads": 1}
RTOL = 1e-4
STEPS = {"rtol": 0.0, "atol": 1e-4}

# What the weights of queries, keys and values are called: the heads are what they give.
PROJECTION = re.compile(r"(^|[._])(q|k|v|q_proj|k_proj|v_proj|q_lin|k_lin|v_lin|query|key|value)$")
FUSED = ("query_key_value",)

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    # AdamW divides by a gradient's size plus eps: eps is above the rounding of gradients that are 0
    # in exact numbers (a key's bias).
    "AdamW": functools.partial(torch.optim.AdamW, lr=1e-3, eps=1e-4),
    "SGD": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
}

SAMPLING = {"do_sample": True, "temperature": 1.2, "top_k": 30, "top_p": 0.95}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": SAMPLING,
    "beams": {"do_sample": False, "num_beams": 3},
}


@contextmanager
def tiled(tiling: str, *, cpu_fallback: bool) -> Iterator[None]:
    """A context of its own with this tiling; nothing on another device."""
    if not support.ON_TILEDEV:
        yield
        return
    from tests.tiling import context

    support.settle()
    with context(2, cpu_fallback=cpu_fallback):
        support.extension().set_tiling_mode("tiny" if tiling == "tiny" else "auto")
        support.extension().reset_stats()
        yield
        support.settle()


def put(batch: dict[str, Any], device: str) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}


class Run:
    """A network and its batch on a device, with the axes named if the tiling asks for it."""

    def __init__(self, stock: Stock, device: str, tiling: str = "auto") -> None:
        self.stock = stock
        self.device = device
        self.named = tiling == "named" and support.ON_TILEDEV
        self.model = stock.build().to(device)
        if self.named:
            name_weights(self.model, stock.axes)

    def place(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns the batch on the device, its axes named and tiled."""
        batch = put(batch, self.device)
        if self.named:
            name_batch(batch, self.stock.axes)
            tile(self.stock.axes)
        return batch

    def forward(self) -> dict[str, Tensor]:
        """Returns every tensor of the answer in evaluation."""
        batch = self.place(self.stock.batch())
        with torch.no_grad():
            answer = self.model.eval()(**batch)
        if self.named and not self.stock.fallbacks:  # a fallback flushes what comes before
            check_groups(self.stock.axes)
        return {key: value for key, value in answer.items() if isinstance(value, Tensor)}

    def gradients(self) -> dict[str, Tensor | None]:
        """Returns every parameter's gradient, dropout at work."""
        batch = self.place(self.stock.batch())
        support.seed(4)
        self.model.train()(**batch)["loss"].backward()
        return {name: weight.grad for name, weight in self.model.named_parameters()}

    def steps(self, optimizer: str, count: int = 3) -> dict[str, Tensor]:
        """Returns weights and buffers after some steps of training, and the losses."""
        batch = self.place(self.stock.batch())
        step = self.training_step(batch, optimizer)
        support.seed(4)
        losses = [step() for _ in range(count)]
        return {**self.model.state_dict(), "losses": torch.stack(losses)}

    def training_step(self, batch: dict[str, Any], name: str) -> Callable[[], Tensor]:
        """Returns a step of training on this batch; it gives the loss."""
        self.model.train()
        optimizer = OPTIMIZERS[name](self.model.parameters())

        def step() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = self.model(**batch)["loss"]
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    def generate(self, search: str, cache: str | None) -> Tensor:
        """Returns the tokens that the network goes on with."""
        batch = self.place(self.stock.start())
        support.seed(5)
        settings = {**SEARCHES[search], "max_new_tokens": 6, "min_new_tokens": 4}
        if cache is not None:
            settings["cache_implementation"] = cache
        tokens: Tensor = self.model.eval().generate(**batch, **settings)
        return tokens


def name_weights(model: nn.Module, axes: tuple[str, ...]) -> None:
    """Names the outputs of queries, keys and values, and the features of the embeddings."""
    import tiledev

    for name, module in model.named_modules():
        if "heads" in axes and (PROJECTION.search(name) or name.endswith(FUSED)):
            tiledev.set_axis_group_name(module.weight, {0: "heads"})
    if "hidden" in axes:
        embeddings = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
        patches = [weight for weight in model.parameters() if weight.dim() == 4]
        names = {1: "hidden"} if embeddings else {0: "hidden"}
        tiledev.set_axis_group_name((embeddings or patches)[0], names)


def name_batch(batch: dict[str, Any], axes: tuple[str, ...]) -> None:
    """Names the rows, and the positions of text."""
    import tiledev

    for key, value in batch.items():
        if isinstance(value, Tensor):
            names = {0: "batch"}
            if "sequence" in axes and key in ("input_ids", "attention_mask"):
                names[1] = "sequence"
            tiledev.set_axis_group_name(value, names)


def tile(axes: tuple[str, ...]) -> None:
    import tiledev

    for name in axes:
        tiledev.set_axis_group_tiling(name, TILES[name])


def check_groups(axes: tuple[str, ...]) -> None:
    """The pending graph has groups of all these names, with their tiles."""
    import tiledev

    tiled_by_name = {group.name for group in tiledev.axis_groups() if group.tiles}
    assert set(axes) <= tiled_by_name, tiledev.format_axis_groups()


@functools.cache
def expected(stock: Stock, check: str, *arguments: Any) -> Any:
    """What the CPU gives."""
    return getattr(Run(stock, "cpu"), check)(*arguments)


def compare(stock: Stock, tiling: str, check: str, *arguments: Any) -> dict[str, int]:
    """Fails if the device gives something else than the CPU; returns the fallbacks it took.

    Args:
        stock: the network.
        tiling: one of TILINGS.
        check: the method of `Run` that makes what is compared.
        arguments: what the method is called with.
    """
    want = expected(stock, check, *arguments)
    with tiled(tiling, cpu_fallback=bool(stock.fallbacks)):
        run = Run(stock, support.DEVICE, tiling)
        got = getattr(run, check)(*arguments)
        close = {"rtol": RTOL, "atol": stock.atol}
        assert_equal(got, want, **(STEPS if check == "steps" else close))
        taken = support.fallback_stats()
    assert set(taken) <= set(stock.fallbacks), taken
    return taken


def assert_equal(got: Any, want: Any, **tolerance: float) -> None:
    """Tensors by name, or one of integers, which must be the same."""
    if isinstance(want, Tensor):
        got, want = {"tokens": got}, {"tokens": want}
    assert got.keys() == want.keys()
    for name, value in want.items():
        if value is None:
            assert got[name] is None, name
            continue
        assert got[name].device.type == torch.device(support.DEVICE).type, name
        torch.testing.assert_close(
            got[name].cpu(), value, msg=functools.partial("{}: {}".format, name), **tolerance
        )

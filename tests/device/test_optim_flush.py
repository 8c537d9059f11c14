"""The end of an optimizer step flushes, without waiting, and only where there is something to."""

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

import tiledev

pytestmark = pytest.mark.tiledev_only

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "SGD foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "AdamW foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


@pytest.fixture(autouse=True)
def nothing_pending():
    torch.tiledev.synchronize()


def model_and_loss(device: str = "tiledev"):
    model = torch.nn.Linear(4, 2).to(device)
    return model, lambda: model(torch.ones(3, 4, device=device)).square().mean()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_flushes(name):
    model, loss = model_and_loss()
    optimizer = OPTIMIZERS[name](model.parameters())
    loss().backward()
    assert tiledev.has_pending_graph()
    optimizer.step()
    assert not tiledev.has_pending_graph()


def test_backward_and_zero_grad_do_not():
    model, loss = model_and_loss()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    flushes = tiledev._C.counters()["flushes"]
    for set_to_none in (True, False):
        loss().backward()
        optimizer.zero_grad(set_to_none=set_to_none)
    assert tiledev._C.counters()["flushes"] == flushes
    assert tiledev.has_pending_graph()


def test_a_step_of_a_cpu_model_leaves_the_graph_alone():
    model, loss = model_and_loss("cpu")
    pending = torch.ones(2, device="tiledev") + 1
    loss().backward()
    OPTIMIZERS["Adam"](model.parameters()).step()
    assert tiledev.has_pending_graph()
    assert pending.tolist() == [2, 2]


def test_a_step_of_a_mixed_model_flushes():
    on_cpu = torch.nn.Parameter(torch.ones(2))
    on_device = torch.nn.Parameter(torch.ones(2, device="tiledev"))
    optimizer = torch.optim.SGD([{"params": [on_cpu]}, {"params": [on_device]}], lr=0.1)
    (on_device * 2).sum().backward()
    optimizer.step()
    assert not tiledev.has_pending_graph()


def test_a_step_without_gradients_is_fine():
    model, _ = model_and_loss()
    OPTIMIZERS["Adam"](model.parameters()).step()


def test_a_closure_and_an_error_in_the_step():
    model, loss = model_and_loss()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    first = optimizer.step(closure)
    assert not tiledev.has_pending_graph()
    assert loss().item() < first.item()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)


def test_every_step_has_the_plan_of_the_second():
    model, loss = model_and_loss()
    optimizer = OPTIMIZERS["Adam"](model.parameters())
    misses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        misses.append(tiledev.plan_cache_stats()["misses"])
    assert misses[2:] == [misses[2]] * 4


def test_other_hooks_and_subclasses_are_respected():
    calls = []

    class Mine(torch.optim.SGD):
        def step(self, closure=None):
            calls.append("step")
            return super().step(closure)

    model, loss = model_and_loss()
    optimizer = Mine(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: calls.append("hook"))
    loss().backward()
    optimizer.step()
    assert "step" in calls
    assert "hook" in calls
    assert not tiledev.has_pending_graph()


def test_the_hook_is_registered_once():
    names = [hook.__module__ for hook in torch_optimizer._global_optimizer_post_hooks.values()]
    assert names.count("tiledev._optimizer") == 1

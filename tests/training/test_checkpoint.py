"""A run goes on from its checkpoint to the bit, and a kill during a write leaves the old file."""

import os
import random
import signal

import numpy
import pytest
import torch

from tests import support
from tests.device import scripts
from tiledev.training import AdamW, clone_model_weights, load_checkpoint, save_checkpoint

# What the fresh process and this one run alike.
RUN = """
    import random
    import numpy
    import torch
    import tiledev
    from tiledev.training import AdamW, cross_entropy, load_checkpoint, save_checkpoint


    class Run:
        def __init__(self, device, amp):
            torch.manual_seed(0)
            random.seed(0)
            numpy.random.seed(0)
            dtype = torch.float16 if amp else torch.float32
            self.device = device
            norm = torch.nn.LayerNorm(32) if amp else torch.nn.BatchNorm1d(32)
            layers = [torch.nn.Linear(6, 32), norm, torch.nn.Dropout(0.5)]
            self.model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 4)).to(device, dtype)
            self.optimizer = AdamW(self.model.parameters(), lr=0.1, amsgrad=True, max_grad_norm=1.0)
            self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.3, 10)
            self.scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)
            self.cursor = {"epoch": 1, "order": torch.arange(4), "seen": 0}

        def parts(self):
            return {
                "model": self.model,
                "optimizer": self.optimizer,
                "scheduler": self.scheduler,
                "scaler": self.scaler,
            }

        def train(self, steps):
            for _ in range(steps):
                noise = random.random() + numpy.random.rand()
                x = torch.randn(8, 6).to(self.device) + noise
                x = x + torch.rand(8, 6, device=self.device)
                y = torch.randint(4, (8,)).to(self.device)
                self.optimizer.zero_grad()
                loss = cross_entropy(self.model(x.to(self.model[0].weight.dtype)).float(), y)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.scheduler.step()
                self.cursor["seen"] += 8

        def result(self):
            weights = {name: value.cpu() for name, value in self.model.state_dict().items()}
            state = self.optimizer.state_dict()["state"]
            for index, entry in state.items():
                weights |= {f"{index}.{key}": value.cpu() for key, value in entry.items()}
            weights["scale"] = torch.tensor(self.scaler.get_scale())
            weights["lr"] = torch.tensor(self.scheduler.get_last_lr())
            weights["seen"] = torch.tensor(self.cursor["seen"])
            weights["next"] = torch.rand(3, device=self.device).cpu()
            return weights
"""


CASES = [(device, amp) for device in sorted({"cpu", support.DEVICE}) for amp in (False, True)]
STRAIGHT = """
    run = Run(device, amp)
    run.train(3)
    save_checkpoint(f"{name}.pt", **run.parts(), cursor=run.cursor)
    run.train(3)
    torch.save(run.result(), f"{name}-straight.pt")
"""
RESUMED = """
    run = Run(device, amp)
    torch.manual_seed(7)  # the generators come from the file
    run.cursor = load_checkpoint(f"{name}.pt", **run.parts())
    run.train(3)
    torch.save(run.result(), f"{name}-resumed.pt")
"""


def program(body, folder):
    """A program that does `body` for each case in a folder."""
    lines = [
        "import os",
        f"os.chdir({str(folder)!r})",
        f"for device, amp in {CASES!r}:",
        "    name = f'{device}-{amp}'",
        scripts.textwrap.indent(scripts.textwrap.dedent(body), "    "),
    ]
    return scripts.textwrap.dedent(RUN) + "\n".join(lines)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with the results of runs of 6 steps, straight and from a checkpoint after 3."""
    folder = tmp_path_factory.mktemp("runs")
    scripts.check(program(STRAIGHT, folder))
    scripts.check(program(RESUMED, folder))
    return folder


@pytest.mark.parametrize(("device", "amp"), CASES)
def test_a_fresh_process_goes_on_to_the_bit(runs, device, amp):
    want = torch.load(runs / f"{device}-{amp}-straight.pt")
    got = torch.load(runs / f"{device}-{amp}-resumed.pt")
    assert want.keys() == got.keys()
    assert [name for name in want if not torch.equal(want[name], got[name])] == []


PICKLING = """
    class Stalls:
        def __reduce__(self):
            stall()

    state["stalls"] = Stalls()
"""
FLUSHING = "os.fsync = stall"
RENAMING = "os.replace = stall"
RENAMED = """
    replace = os.replace
    os.replace = lambda *args: (replace(*args), stall())
"""


@pytest.mark.parametrize(
    ("moment", "survivor"),
    [(PICKLING, "old"), (FLUSHING, "old"), (RENAMING, "old"), (RENAMED, "new")],
    ids=["pickling", "flushing", "renaming", "renamed"],
)
def test_a_kill_during_the_write_leaves_a_whole_file(tmp_path, moment, survivor):
    path = tmp_path / "run.pt"
    save_checkpoint(path, cursor={"name": "old", "tensor": torch.ones(1 << 20)})
    start = """
        import os
        import time
        import torch
        from tiledev.training import save_checkpoint

        def stall(*_):
            print("here", flush=True)
            time.sleep(60)

        state = {"name": "new", "tensor": torch.ones(1 << 20)}
    """
    lines = [*map(scripts.textwrap.dedent, (start, moment))]
    process = scripts.start("\n".join(lines) + f"\nsave_checkpoint({str(path)!r}, cursor=state)")
    try:
        assert process.stdout.readline() == "here\n", process.stderr.read()
        begun = list(tmp_path.glob(".run.pt.*.tmp"))
        assert len(begun) == (survivor == "old")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    content = load_checkpoint(path)
    assert content["name"] == survivor
    assert torch.equal(content["tensor"], torch.ones(1 << 20))


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.pt"
    save_checkpoint(path, cursor=1)
    for bad in (object(), numpy.zeros(3), {"a": [lambda: 0]}):
        with pytest.raises((TypeError, AttributeError)):
            save_checkpoint(path, cursor=bad)
    with pytest.raises(TypeError, match=r"^\[save_checkpoint\] a state holds something"):
        save_checkpoint(path, cursor=numpy.zeros(3))
    assert load_checkpoint(path) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_a_link_stays_a_link_and_modes_are_those_of_new_files(tmp_path):
    real, link, plain = tmp_path / "real.pt", tmp_path / "link.pt", tmp_path / "plain"
    plain.touch()
    save_checkpoint(real, cursor=1)
    link.symlink_to(real)
    save_checkpoint(link, cursor=2)
    assert link.is_symlink()
    assert load_checkpoint(real) == 2
    assert real.stat().st_mode == plain.stat().st_mode


def test_moves_between_devices(tmp_path):
    path = tmp_path / "run.pt"
    for source, target in ((support.DEVICE, "cpu"), ("cpu", support.DEVICE)):
        model = torch.nn.Linear(3, 2).to(source)
        optimizer = AdamW(model.parameters())
        model(torch.ones(1, 3).to(source)).sum().backward()
        optimizer.step()
        save_checkpoint(path, model=model, optimizer=optimizer)
        other = torch.nn.Linear(3, 2).to(target)
        other_optimizer = AdamW(other.parameters(), lr=0.5)
        assert load_checkpoint(path, model=other, optimizer=other_optimizer) is None
        assert torch.equal(other.weight.cpu(), model.weight.cpu())
        assert other.weight.device.type == target
        state = other_optimizer.state[other.weight]["exp_avg"]
        assert state.device.type == target
        assert torch.equal(state.cpu(), optimizer.state[model.weight]["exp_avg"].cpu())
        assert other_optimizer.param_groups[0]["lr"] == 1e-3


def test_a_file_holds_plain_tensors(tmp_path):
    """Another program reads it with torch.load alone."""
    model = torch.nn.Linear(3, 2).to(support.DEVICE)
    save_checkpoint(tmp_path / "run.pt", model=model)
    content = torch.load(tmp_path / "run.pt", map_location="cpu", weights_only=True)
    assert torch.equal(content["model"]["weight"], clone_model_weights(model)["weight"])


def test_generators(tmp_path):
    def draw():
        numbers = [torch.rand(1).item(), torch.rand(1, device=support.DEVICE).item()]
        return [*numbers, random.random(), random.gauss(0, 1), numpy.random.randn()]

    random.gauss(0, 1)  # leaves half of a pair behind, and so does the next line
    numpy.random.randn()
    save_checkpoint(tmp_path / "run.pt")
    want = draw()
    other = draw()
    load_checkpoint(tmp_path / "run.pt", rng=False)
    assert draw() not in (want, other)
    load_checkpoint(tmp_path / "run.pt")
    assert draw() == want
    save_checkpoint(tmp_path / "plain.pt", rng=False)
    assert "rng" not in torch.load(tmp_path / "plain.pt")


class Sampler:
    """A data cursor with a state of its own."""

    def __init__(self):
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_a_cursor_with_a_state(tmp_path):
    sampler, other = Sampler(), Sampler()
    sampler.position = 5
    save_checkpoint(tmp_path / "run.pt", cursor=sampler)
    assert load_checkpoint(tmp_path / "run.pt", cursor=other) == {"position": 5}
    assert other.position == 5


def test_errors(tmp_path):
    path = tmp_path / "run.pt"
    model = torch.nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"^\[save_checkpoint\] got model of type int"):
        save_checkpoint(path, model=3)
    with pytest.raises(FileNotFoundError):
        save_checkpoint(tmp_path / "missing" / "run.pt", model=model)
    save_checkpoint(path, model=model)
    with pytest.raises(ValueError, match=r"has no optimizer and no scaler, only model; leave out"):
        load_checkpoint(path, optimizer=Sampler(), scaler=Sampler())
    with pytest.raises(TypeError, match=r"^\[load_checkpoint\] got model of type int"):
        load_checkpoint(path, model=3)
    torch.save({"weight": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="is not from save_checkpoint"):
        load_checkpoint(path)
    torch.save({"format": "tiledev.checkpoint", "version": 99}, path)
    with pytest.raises(ValueError, match="version 99"):
        load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.pt")

"""Ops of other packages: torch.library's custom ops and library fragments, with autograd."""

import gc

import numpy as np
import pytest
import torch
from torch.library import Library, custom_op, opcheck

import tiledev
from tests import support
from tests.compare import assert_same
from tests.device import scripts
from tests.tiling import context, tiny_tiles

NAMES = "tiledev_custom"
CALLS: list[torch.device] = []  # where `scaled` ran
KEPT: list[Library] = []  # a library that is collected takes its ops with it

# Kernels that need host memory say device_types="cpu"; a kernel without device_types is called with
# tensors of any device, and its own ops are what is recorded.


@custom_op(f"{NAMES}::scaled", mutates_args=(), device_types="cpu")
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    CALLS.append(x.device)
    return torch.from_numpy(np.asarray(x.detach().numpy() * factor)).to(x.dtype)


@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)


def _keep_factor(ctx, inputs, output):
    ctx.factor = inputs[1]


scaled.register_autograd(
    lambda ctx, grad: (scaled(grad, ctx.factor), None), setup_context=_keep_factor
)


@scaled.register_vmap
def _(info, in_dims, x, factor):
    return scaled(x, factor), in_dims[0]


@custom_op(f"{NAMES}::any_device", mutates_args=())
def any_device(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    CALLS.append(x.device)
    return torch.sin(x) * y


@custom_op(f"{NAMES}::no_fake", mutates_args=(), device_types="cpu")
def no_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 3)


@custom_op(f"{NAMES}::data_dependent", mutates_args=(), device_types="cpu")
def data_dependent(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy()[x.numpy() > 0])


@data_dependent.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@custom_op(f"{NAMES}::min_max", mutates_args=(), device_types="cpu")
def min_max(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amin(dim), x.argmax(dim)


@min_max.register_fake
def _(x, dim):
    shape = [size for i, size in enumerate(x.shape) if i != dim]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


@custom_op(f"{NAMES}::times_each", mutates_args=(), device_types="cpu")
def times_each(xs: list[torch.Tensor], factors: list[int]) -> list[torch.Tensor]:
    return [x * factor for x, factor in zip(xs, factors, strict=True)]


@times_each.register_fake
def _(xs, factors):
    return [torch.empty_like(x) for x in xs]


@custom_op(f"{NAMES}::add_to", mutates_args={"x"}, device_types="cpu")
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    x.numpy()[...] += y.numpy()


@custom_op(f"{NAMES}::add_and_double", mutates_args={"x"}, device_types="cpu")
def add_and_double(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.add_(y) * 2


@add_and_double.register_fake
def _(x, y):
    return torch.empty_like(x)


@custom_op(f"{NAMES}::options", mutates_args=(), device_types="cpu")
def options(
    x: torch.Tensor, y: torch.Tensor | None = None, mode: str = "add", times: int = 1
) -> torch.Tensor:
    if y is not None:
        x = x + y if mode == "add" else x - y
    return x.repeat(times)


@options.register_fake
def _(x, y=None, mode="add", times=1):
    return x.new_empty(x.size(0) * times)


@custom_op(f"{NAMES}::total", mutates_args=(), device_types="cpu")
def total(x: torch.Tensor) -> float:
    return float(x.numpy().sum())


@custom_op(f"{NAMES}::own_strides", mutates_args=(), device_types="cpu")
def own_strides(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])[: len(x)].t().contiguous().t()


@own_strides.register_fake
def _(x):
    return x.new_empty(x.shape)


@custom_op(f"{NAMES}::alias", mutates_args=(), device_types="cpu")
def alias(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1)


@alias.register_fake
def _(x):
    return x.new_empty(x.numel())


@custom_op(f"{NAMES}::any_device_alias", mutates_args=())
def any_device_alias(x: torch.Tensor) -> torch.Tensor:
    return x


@custom_op(f"{NAMES}::broken_promise", mutates_args=(), device_types="cpu")
def broken_promise(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


@broken_promise.register_fake
def _(x):
    return torch.empty_like(x)


@custom_op(f"{NAMES}::failing", mutates_args=(), device_types="cpu")
def failing(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("no luck")


@failing.register_fake
def _(x):
    return torch.empty_like(x)


@custom_op(f"{NAMES}::own_kernel", mutates_args=(), device_types="cpu")
def own_kernel(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def given(device, *shape, dtype=torch.float32):
    count = int(np.prod(shape))
    return torch.linspace(-2, 3, count, dtype=dtype).reshape(shape).to(device)


def run_alone(body):
    """The counts of the fallback for one call."""
    before = support.fallback_stats()
    assert_same(body)
    return support.stats_since(before, support.fallback_stats())


@pytest.fixture(autouse=True)
def nothing_pending():
    support.settle()
    CALLS.clear()
    yield
    support.settle()


@pytest.mark.tiledev_only
class TestRecording:
    def test_an_op_with_a_fake_kernel_is_recorded(self):
        x = given("tiledev", 2, 3)
        support.synchronize()
        out = scaled(x, 2.0)
        assert tiledev.pending_op_names() == [f"{NAMES}::scaled"]
        assert (out.shape, out.dtype, CALLS) == ((2, 3), torch.float32, [])
        assert torch.equal(out.cpu(), x.cpu() * 2)
        assert list(map(str, CALLS)) == ["cpu"]  # once: shapes come from the fake kernel

    def test_an_op_for_any_device_is_recorded_as_its_own_ops(self):
        x = given("tiledev", 2, 3)
        support.synchronize()
        out = any_device(x, x)
        assert tiledev.pending_op_names() == ["aten::sin", "aten::mul.Tensor"]
        assert list(map(str, CALLS)) == ["tiledev:0"]
        assert torch.equal(out.cpu(), torch.sin(x.cpu()) * x.cpu())

    def test_no_fallback(self):
        with context(2, cpu_fallback=False):
            tiledev.reset_stats()
            x = given("tiledev", 4, 3).requires_grad_()
            y = given("tiledev", 4, 3)
            each = sum(times_each([y, y], [1, 2]))
            out = scaled(x, 2.0).sum() + min_max(y, 0)[0].sum() + each.sum()
            add_to(y, y)
            out.backward()
            assert x.grad.eq(2).all()
            assert support.fallback_stats() == {}

    def test_a_step_makes_its_plan_once(self):
        w = given("tiledev", 4).requires_grad_()
        optimizer = torch.optim.SGD([w], lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            scaled(w, 1.0 + step).square().sum().backward()
            optimizer.step()
            support.synchronize()
            if step == 1:
                before = tiledev.plan_cache_stats()
        after = tiledev.plan_cache_stats()
        assert after["misses"] == before["misses"]
        assert len(CALLS) == 8  # forward and backward

    def test_under_tiny_tiles(self):
        def body(device):
            x = given(device, 13, 7).requires_grad_()
            scaled(x.relu() * 2, 0.5).square().sum().backward()
            return x.grad

        support.settle()
        with tiny_tiles():
            assert_same(body)
            support.settle()

    def test_memory_goes_with_the_result(self):
        gc.collect()
        support.synchronize()
        before = torch.tiledev.memory_allocated()
        for _ in range(3):
            scaled(given("tiledev", 1000), 2.0).sum().item()
        gc.collect()
        support.synchronize()
        assert torch.tiledev.memory_allocated() == before


class TestValues:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32], ids=str)
    def test_forward(self, dtype):
        assert run_alone(lambda device: scaled(given(device, 2, 3, dtype=dtype), 3.0)) == {}

    def test_floats_are_arguments_of_the_call(self):
        assert_same(lambda device: [scaled(given(device, 3), f) for f in (0.5, 2.0, -1.0)])

    def test_other_arguments(self):
        def body(device):
            x, y = given(device, 4), given(device, 4) * 2
            calls = [{}, {"y": y}, {"y": y, "mode": "sub"}, {"times": 3}, {"y": y, "times": 2}]
            return [options(x, **call) for call in calls]

        assert run_alone(body) == {}

    def test_gradients(self):
        def body(device):
            x = given(device, 3, 4).requires_grad_()
            out = scaled(x.exp(), 2.0)
            out.square().sum().backward()
            return [out, x.grad]

        assert run_alone(body) == {}

    def test_second_gradients(self):
        def body(device):
            x = given(device, 3).requires_grad_()
            (grad,) = torch.autograd.grad(scaled(x, 2.0).pow(3).sum(), x, create_graph=True)
            return torch.autograd.grad(grad.square().sum(), x)

        assert_same(body)

    def test_gradcheck(self, device):
        x = given(device, 2, 3, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: scaled(x, 2.0), x)

    def test_transforms(self):
        def body(device):
            x = given(device, 3, 4)
            per_row = torch.func.grad(lambda row: scaled(row, 2.0).square().sum())
            return [torch.vmap(lambda row: scaled(row, 2.0))(x), torch.vmap(per_row)(x)]

        assert run_alone(body) == {}

    def test_an_op_without_a_formula_has_no_gradient(self):
        def body(device):
            return min_max(given(device, 2, 3).requires_grad_(), 1)[0].sum().backward()

        assert_same(body)
        with pytest.raises(RuntimeError):
            body(support.DEVICE)

    def test_several_results(self):
        assert run_alone(lambda device: list(min_max(given(device, 3, 4), 1))) == {}

    def test_lists(self):
        def body(device):
            return times_each([given(device, 3), given(device, 2, 2)], [2, 3])

        assert run_alone(body) == {}

    @pytest.mark.parametrize(
        "view",
        [
            pytest.param(lambda x: x.t(), id="transposed"),
            pytest.param(lambda x: x[1:, ::2], id="strided"),
            pytest.param(lambda x: x[:1].expand(3, 6), id="expanded"),
            pytest.param(lambda x: x[:0], id="empty"),
            pytest.param(lambda x: x[2, 3], id="scalar"),
        ],
    )
    def test_views_as_inputs(self, view):
        assert run_alone(lambda device: scaled(view(given(device, 4, 6)), 2.0)) == {}

    def test_strides_that_the_fake_kernel_did_not_promise(self, device):
        got = own_strides(given(device, 3, 4))
        assert torch.equal(got.cpu(), given("cpu", 3, 4))
        assert torch.equal((got + got.t().contiguous().t()).cpu(), given("cpu", 3, 4) * 2)

    def test_a_number_as_the_result(self, device):
        result = total(given(device, 5))
        assert isinstance(result, float)
        assert result == given("cpu", 5).sum().item()

    def test_a_kernel_of_the_devices_own(self, device):
        if support.ON_TILEDEV:
            own_kernel.register_kernel("tiledev")(lambda x: x + 2)
        want = 2 if support.ON_TILEDEV else 1
        assert torch.equal(own_kernel(given(device, 3)).cpu(), given("cpu", 3) + want)
        assert torch.equal(own_kernel(given("cpu", 3)), given("cpu", 3) + 1)


class TestMutation:
    @pytest.mark.parametrize(
        "view",
        [
            pytest.param(lambda x: x, id="whole"),
            pytest.param(lambda x: x[1], id="row"),
            pytest.param(lambda x: x[:, 1], id="column"),
            pytest.param(lambda x: x.t(), id="transposed"),
        ],
    )
    def test_an_argument_and_its_views(self, view):
        def body(device):
            x = given(device, 3, 4)
            row, before = x[1:2], x._version
            add_to(view(x), view(x).clone() + 1)
            return [x, row, x._version - before]

        assert run_alone(body) == {}

    def test_with_a_result(self):
        def body(device):
            x = given(device, 3)
            return [add_and_double(x, x + 1), x]

        assert run_alone(body) == {}

    def test_order_with_other_ops(self):
        def body(device):
            x = given(device, 3)
            before = x * 1
            add_to(x, x * 2)
            middle = x + 1
            x.mul_(2)
            add_to(x, middle)
            return [before, middle, x]

        assert run_alone(body) == {}

    def test_a_saved_tensor_that_is_written_to(self):
        def body(device):
            leaf = given(device, 3).requires_grad_()
            x = leaf * 1
            out = x.square()
            with torch.no_grad():
                add_to(x, x.detach() + 1)
            out.sum().backward()

        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            body(support.DEVICE)
        assert_same(body)


class TestErrors:
    @pytest.mark.parametrize("op", [alias, any_device_alias], ids=["cpu", "any device"])
    def test_a_result_that_is_an_argument(self, op):
        def body(device):
            out = op(given(device, 3))
            support.synchronize()
            return out

        with pytest.raises(RuntimeError, match="may not alias any inputs"):
            body(support.DEVICE)
        assert_same(body)

    @pytest.mark.tiledev_only
    def test_a_fake_kernel_that_promises_another_shape(self):
        out = broken_promise(given("tiledev", 2, 3))
        message = rf"{NAMES}::broken_promise\] gave .*\[3\] where its Meta kernel promised"
        with pytest.raises(RuntimeError, match=message):
            out.cpu()

    @pytest.mark.tiledev_only
    def test_a_kernel_that_raises_names_op_and_line(self):
        out = failing(given("tiledev", 2))
        with pytest.raises(Exception, match=rf"(?s)no luck.*{NAMES}::failing.*test_custom_ops.py"):
            out.cpu()

    def test_a_kernel_that_raises_keeps_its_type(self):
        with pytest.raises(ValueError, match="no luck"):
            failing(given(support.DEVICE, 2)).cpu()


class TestFallback:
    @pytest.mark.filterwarnings("ignore:.*cannot be recorded")
    def test_without_a_fake_kernel(self):
        counted = run_alone(lambda device: no_fake(given(device, 3)))
        assert counted == {f"{NAMES}::no_fake": 1} or not support.ON_TILEDEV

    @pytest.mark.filterwarnings("ignore:.*cannot be recorded")
    def test_a_fake_kernel_of_a_size_that_depends_on_data(self):
        counted = run_alone(lambda device: data_dependent(given(device, 5)))
        assert counted == {f"{NAMES}::data_dependent": 1} or not support.ON_TILEDEV


@pytest.fixture(scope="module")
def fragment():
    """Ops as C++ extensions define them: a schema, kernels by dispatch key."""
    library = Library(f"{NAMES}_lib", "DEF")
    library.define("plus(Tensor a, Tensor b) -> Tensor")
    library.impl("plus", lambda a, b: torch.from_numpy(a.numpy() + b.numpy()), "CPU")
    library.define("with_meta(Tensor a) -> Tensor")
    library.impl("with_meta", lambda a: torch.from_numpy(a.numpy() * 2), "CPU")
    library.impl("with_meta", torch.empty_like, "Meta")
    library.define("bump_(Tensor(a!) a) -> Tensor(a!)")
    library.impl("bump_", lambda a: a.add_(1), "CPU")
    library.define("copied.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)")
    library.impl("copied.out", lambda a, out: out.copy_(a), "CPU")
    library.define("composite(Tensor a) -> Tensor")
    library.impl("composite", lambda a: a * 2 + 1, "CompositeImplicitAutograd")
    library.define("total(Tensor? a, Tensor?[] b) -> Tensor")
    library.impl("total", lambda a, b: sum(x for x in [a, *b] if x is not None).clone(), "CPU")
    library.define("flat(Tensor(a) a) -> Tensor(a)")
    library.impl("flat", lambda a: a.view(-1), "CPU")
    library.impl("flat", lambda a: a.view(-1), "Meta")
    library.define("nowhere(Tensor a) -> Tensor")
    KEPT.append(library)
    return getattr(torch.ops, f"{NAMES}_lib")


@pytest.mark.filterwarnings("ignore:.*cannot be recorded")
class TestLibraryFragments:
    def counts(self, *names):
        return {f"{NAMES}_lib::{name}": 1 for name in names} if support.ON_TILEDEV else {}

    def test_a_cpu_kernel_goes_through_the_fallback(self, fragment):
        def body(device):
            return fragment.plus(given(device, 3), given(device, 3) + 1)

        assert run_alone(body) == self.counts("plus")

    def test_a_meta_kernel_is_enough_to_be_recorded(self, fragment):
        assert run_alone(lambda device: fragment.with_meta(given(device, 3))) == {}
        if support.ON_TILEDEV:
            out = fragment.with_meta(given("tiledev", 3))
            assert f"{NAMES}_lib::with_meta" in tiledev.pending_op_names()
            assert out.shape == (3,)

    def test_in_place(self, fragment):
        def body(device):
            x = given(device, 2, 3)
            row = x[1]
            same = fragment.bump_(x) is x or fragment.bump_(row) is row
            return [x, row, same]

        counted = run_alone(body)
        assert set(counted) == set(self.counts("bump_"))

    def test_out(self, fragment):
        def body(device):
            out = torch.zeros(3, device=device)
            fragment.copied(given(device, 3), out=out)
            return out

        assert run_alone(body) == self.counts("copied.out")

    def test_composite_with_gradients(self, fragment):
        def body(device):
            x = given(device, 3).requires_grad_()
            fragment.composite(x).square().sum().backward()
            return x.grad

        assert run_alone(body) == {}

    def test_optional_tensors(self, fragment):
        def body(device):
            x = given(device, 3)
            return fragment.total(None, [x, None, x])

        assert run_alone(body) == self.counts("total")

    def test_no_fallback_means_an_error(self, fragment):
        if not support.ON_TILEDEV:
            pytest.skip("the CPU has no fallback")
        refused = pytest.raises(NotImplementedError, match=f"{NAMES}_lib::plus")
        with context(2, cpu_fallback=False), refused:
            fragment.plus(given("tiledev", 3), given("tiledev", 3))

    def test_no_kernel_anywhere(self, fragment):
        with pytest.raises(NotImplementedError, match=f"{NAMES}_lib::nowhere"):
            fragment.nowhere(given(support.DEVICE, 3))

    @pytest.mark.filterwarnings("ignore:.*cannot be recorded")
    def test_a_view(self, fragment):
        def body(device):
            x = given(device, 2, 3)
            fragment.flat(x).add_(1)
            return x

        assert_same(body)


@pytest.mark.tiledev_only
def test_an_op_that_is_gone_leaves_nothing_behind():
    code = f"""
        import torch, tiledev
        x = torch.ones(3, device="tiledev")
        for index in range(6):
            library = torch.library.Library(f"{NAMES}_{{index}}", "DEF")
            library.define("twice(Tensor x) -> Tensor")
            library.impl("twice", lambda x: x * 2, "CPU")
            assert getattr(torch.ops, f"{NAMES}_{{index}}").twice(x).tolist() == [2.0] * 3
            library._destroy()
        print(sorted(tiledev.fallback_stats()))
    """
    want = [f"{NAMES}_{index}::twice" for index in range(6)]
    done = scripts.run(code)  # stderr has the fallback's warnings
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(want)


class TestOpcheck:
    @pytest.mark.parametrize(
        ("op", "inputs"),
        [
            (scaled, lambda d: (given(d, 2, 3), 2.0)),
            (min_max, lambda d: (given(d, 2, 3), 1)),
            (times_each, lambda d: ([given(d, 2), given(d, 3)], [2, 3])),
            (add_to, lambda d: (given(d, 3), given(d, 3) + 1)),
            (add_and_double, lambda d: (given(d, 3), given(d, 3) + 1)),
            (options, lambda d: (given(d, 3), given(d, 3), "sub", 2)),
        ],
        ids=lambda x: getattr(x, "_name", None),
    )
    def test_passes(self, op, inputs, device):
        result = opcheck(op, inputs(device))
        assert set(result.values()) == {"SUCCESS"}
        assert len(result) == 4

    @pytest.mark.parametrize(
        "which", ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
    )
    def test_passes_with_gradients(self, which, device):
        inputs = (given(device, 2, 3).requires_grad_(), 2.0)
        assert opcheck(scaled, inputs, test_utils=which) == {which: "SUCCESS"}

    @pytest.mark.xfail(
        support.ON_TILEDEV,
        strict=True,
        reason="PyTorch 2.13: 'NYI devices other than CPU/CUDA/XPU'; gradcheck does work",
    )
    def test_autograd_registration(self, device):
        inputs = (given(device, 2, 3).requires_grad_(), 2.0)
        opcheck(scaled, inputs, test_utils="test_autograd_registration")

    def test_finds_a_wrong_schema(self, device):
        with pytest.raises(torch.testing._internal.optests.generate_tests.OpCheckError):
            opcheck(broken_promise, (given(device, 2, 3),))

"""Mixed precision: CUDA's autocast lists, and gradient scaling."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.autocast_test_lists import AutocastTestLists

from tests import support
from tests.device.models import mlp

LOWER = [torch.bfloat16, torch.float16]
LISTS = AutocastTestLists(torch.device("cpu"))


def cases(*names):
    """(module, op, args, options) of the lists that PyTorch tests CUDA's autocast with."""
    found = []
    for name in names:
        module = {"torch": torch, "nn": torch._C._nn, "linalg": torch._C._linalg}.get(
            name.split("_")[0]
        )
        for index, (op, args, *rest) in enumerate(getattr(LISTS, name)):
            if not op.startswith("cudnn") and isinstance(args, tuple):  # einsum's are malformed
                extra = rest[0] if rest and isinstance(rest[0], dict) else {}
                found.append(pytest.param(module, op, args, extra, id=f"{op}-{index}"))
    return found


def cast(value, dtype, device):
    """Nested arguments on `device`, those of floating point in `dtype` (None keeps it)."""
    if isinstance(value, torch.Tensor):
        keep = dtype is None or not value.is_floating_point()
        return value.to(device, dtype=None if keep else dtype, copy=True)
    if isinstance(value, (list, tuple)):
        return type(value)(cast(item, dtype, device) for item in value)
    return value


def call(module, op, args, options):
    if module is not None and hasattr(module, op):
        return getattr(module, op)(*args, **options)
    return getattr(args[0], op)(*args[1:], **options)


def tensors(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


def check(case, given, computed, result, autocast_dtype):
    """The op on `given` inputs returns `result`, as if its inputs had been cast to `computed`."""
    module, op, args, options = case
    with torch.autocast(support.DEVICE, dtype=autocast_dtype):
        out = tensors(call(module, op, cast(args, given, support.DEVICE), options))
    assert {tensor.dtype for tensor in out} == {result}
    rounded = cast(cast(args, given, "cpu"), computed, support.DEVICE)
    control = tensors(call(module, op, rounded, options))
    for mine, theirs in zip(out, control, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.cpu().to(result), equal_nan=True)


@pytest.mark.tiledev_only
class TestLists:
    @pytest.mark.parametrize("dtype", LOWER, ids=str)
    @pytest.mark.parametrize(
        ("module", "op", "args", "options"),
        cases("torch_fp16", "nn_fp16", "linalg_fp16", "methods_fp16"),
    )
    def test_lower_precision(self, module, op, args, options, dtype):
        check((module, op, args, options), torch.float32, dtype, dtype, dtype)

    @pytest.mark.parametrize("dtype", LOWER, ids=str)
    @pytest.mark.parametrize(
        ("module", "op", "args", "options"), cases("torch_fp32", "nn_fp32", "methods_fp32")
    )
    def test_float32(self, module, op, args, options, dtype):
        check((module, op, args, options), dtype, torch.float32, torch.float32, dtype)

    @pytest.mark.parametrize("dtype", LOWER, ids=str)
    @pytest.mark.parametrize(
        ("module", "op", "args", "options"), cases("torch_need_autocast_promote")
    )
    def test_promotion_to_the_widest(self, module, op, args, options, dtype):
        mixed = [
            cast(arg, torch.float32 if index == 0 else dtype, support.DEVICE)
            for index, arg in enumerate(args)
        ]
        with torch.autocast(support.DEVICE, dtype=dtype):
            assert call(module, op, mixed, options).dtype == torch.float32
            narrow = cast(args, dtype, support.DEVICE)
            assert call(module, op, narrow, options).dtype == dtype

    @pytest.mark.parametrize("dtype", LOWER, ids=str)
    @pytest.mark.parametrize(
        ("module", "op", "args", "options"), cases("torch_expect_builtin_promote")
    )
    def test_promotion_by_the_op(self, module, op, args, options, dtype):
        with torch.autocast(support.DEVICE, dtype=dtype):
            out = call(module, op, cast(args, None, support.DEVICE), options)
        want = call(module, op, args, options)
        assert type(out) is type(want)
        if isinstance(want, torch.Tensor):
            assert out.dtype == want.dtype

    @pytest.mark.parametrize("dtype", LOWER, ids=str)
    def test_banned(self, dtype):
        x = torch.rand(3, device=support.DEVICE)
        with (
            torch.autocast(support.DEVICE, dtype=dtype),
            pytest.raises(RuntimeError, match="unsafe to autocast"),
        ):
            F.binary_cross_entropy(x, x)


class TestAutocast:
    def test_lists_do_not_touch_other_ops(self):
        x = torch.ones(3, device=support.DEVICE)
        with torch.autocast(support.DEVICE, dtype=torch.bfloat16):
            assert (x + x).dtype == torch.float32
            assert x.clone().fill_(2).tolist() == [2, 2, 2]
            assert x.relu().dtype == torch.float32
            assert torch.zeros(2, device=support.DEVICE).dtype == torch.float32

    def test_einsum(self):
        x = torch.ones(2, 2, device=support.DEVICE)
        with torch.autocast(support.DEVICE, dtype=torch.bfloat16):
            assert torch.einsum("ij,jk->ik", x, x).dtype == torch.bfloat16

    def test_nesting(self):
        x = torch.ones(2, 2, device=support.DEVICE)
        with torch.autocast(support.DEVICE, dtype=torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
            with torch.autocast(support.DEVICE, enabled=False):
                assert (x @ x).dtype == torch.float32
            assert torch.is_autocast_enabled(support.DEVICE)
        assert (x @ x).dtype == torch.float32

    def test_a_weight_is_cast_once(self):
        weight = torch.ones(3, 3, device=support.DEVICE, requires_grad=True)
        x = torch.ones(2, 3, device=support.DEVICE)
        with torch.autocast(support.DEVICE, dtype=torch.bfloat16):
            one, two = x @ weight, x @ weight
        assert one.grad_fn.next_functions[1][0] is two.grad_fn.next_functions[1][0]
        (one + two).float().sum().backward()
        assert weight.grad.dtype == torch.float32
        assert weight.grad.tolist() == [[4.0] * 3] * 3

    def test_as_decorator_and_state(self):
        @torch.autocast(support.DEVICE, dtype=torch.float16)
        def product(x):
            return x @ x

        assert product(torch.ones(2, 2, device=support.DEVICE)).dtype == torch.float16
        torch.set_autocast_dtype(support.DEVICE, torch.float16)
        assert torch.get_autocast_dtype(support.DEVICE) == torch.float16
        torch.set_autocast_dtype(support.DEVICE, torch.bfloat16)

    def test_custom_functions(self):
        class Product(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type=support.DEVICE, cast_inputs=torch.float32)
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x @ x

            @staticmethod
            @torch.amp.custom_bwd(device_type=support.DEVICE)
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                return gradient @ x.mT + x.mT @ gradient

        x = torch.ones(2, 2, dtype=torch.bfloat16, device=support.DEVICE, requires_grad=True)
        with torch.autocast(support.DEVICE, dtype=torch.bfloat16):
            out = Product.apply(x)
            assert out.dtype == torch.float32
        out.sum().backward()
        assert x.grad.dtype == torch.bfloat16

    @pytest.mark.parametrize("dtype", LOWER, ids=str)
    def test_training_follows_float32(self, dtype):
        losses = {}
        for enabled in (False, True):
            support.seed(0)
            torch.manual_seed(0)
            net = mlp(support.DEVICE)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            x, y = torch.ones(8, 4, device=support.DEVICE), torch.zeros(8, 2, device=support.DEVICE)
            losses[enabled] = []
            for _ in range(10):
                with torch.autocast(support.DEVICE, dtype=dtype, enabled=enabled):
                    loss = F.mse_loss(net(x), y)
                assert loss.dtype == torch.float32
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses[enabled].append(loss.item())
        assert losses[True][-1] < losses[True][0] / 2
        assert losses[True] == pytest.approx(losses[False], rel=0.1, abs=5e-3)


class TestGradScaler:
    def step(self, scaler, net, optimizer, x):
        optimizer.zero_grad()
        with torch.autocast(support.DEVICE, dtype=torch.float16):
            loss = net(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    def test_scales_and_grows(self):
        net = mlp(support.DEVICE)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(support.DEVICE, init_scale=4.0, growth_interval=2)
        before = net[0].weight.detach().clone()
        for _ in range(4):
            self.step(scaler, net, optimizer, torch.ones(3, 4, device=support.DEVICE))
        assert scaler.get_scale() == 16.0
        assert not torch.equal(before.cpu(), net[0].weight.detach().cpu())

    @pytest.mark.parametrize("foreach", [False, True])
    def test_skips_a_step_with_infinite_gradients(self, foreach):
        net = mlp(support.DEVICE)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=foreach)
        scaler = torch.amp.GradScaler(support.DEVICE, init_scale=4.0)
        before = net[0].weight.detach().clone()
        self.step(scaler, net, optimizer, torch.full((3, 4), float("inf"), device=support.DEVICE))
        assert torch.equal(before.cpu(), net[0].weight.detach().cpu())
        assert scaler.get_scale() == 2.0

    def test_unscale_and_clip_equal_plain_training(self):
        grads = []
        for enabled in (False, True):
            torch.manual_seed(0)
            net = mlp(support.DEVICE)
            optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler(support.DEVICE, init_scale=1024.0, enabled=enabled)
            loss = net(torch.ones(3, 4, device=support.DEVICE)).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            grads.append(net[0].weight.grad.cpu())
            scaler.step(optimizer)
            scaler.update()
        torch.testing.assert_close(*grads)

    def test_state(self):
        scaler = torch.amp.GradScaler(support.DEVICE, init_scale=8.0)
        scaler.scale(torch.ones(1, device=support.DEVICE))
        other = torch.amp.GradScaler(support.DEVICE)
        other.load_state_dict(scaler.state_dict())
        assert other.get_scale() == 8.0

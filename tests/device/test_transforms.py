"""Functional transforms, checkpointing and custom functions on the device."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests import support
from tests.compare import assert_same
from tests.device.models import leaf, mlp


class TestTransforms:
    def test_func_transforms(self):
        def body(device):
            x, v = leaf(device, 4).detach(), torch.ones(4, device=device)

            def f(t):
                return (t.sin() * t).sum()

            def g(t):
                return t.exp() * t.sum()

            primal, tangent = jvp(g, (x,), (v,))
            value, pull = vjp(g, x)
            return [
                grad(f)(x),
                grad(lambda t: grad(f)(t).sum())(x),
                primal,
                tangent,
                value,
                pull(v)[0],
                jacrev(g)(x),
                jacfwd(g)(x),
                hessian(f)(x),
                vmap(f)(torch.stack([x, v])),
                vmap(grad(f))(torch.stack([x, v])),
                vmap(torch.dot, in_dims=(0, None))(torch.stack([x, v]), v),
                vmap(lambda t: t[1:].cumsum(0), out_dims=1)(torch.stack([x, v])),
            ]

        assert_same(body)

    def test_per_sample_gradients(self):
        def body(device):
            net = mlp(device)
            params = {name: p.detach() for name, p in net.named_parameters()}
            x, y = leaf(device, 3, 4).detach(), torch.zeros(3, 2, device=device)

            def loss(p, sample, target):
                return F.mse_loss(functional_call(net, p, (sample[None],)), target[None])

            return list(vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y).values())

        assert_same(body)

    def test_vmap_with_randomness(self):
        def body(device):
            x = torch.ones(3, 4, device=device)
            return vmap(lambda t: F.dropout(t, 0.5), randomness="same")(x)

        assert_same(body)

    def test_forward_mode(self):
        def body(device):
            x, t = leaf(device, 4).detach(), torch.ones(4, device=device)
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(x, t)
                out = F.softmax(dual, 0) * dual.exp()
                return list(torch.autograd.forward_ad.unpack_dual(out))

        assert_same(body)


class TestCheckpoint:
    @pytest.mark.parametrize("reentrant", [True, False])
    def test_gives_the_same_gradients(self, reentrant):
        def body(device):
            torch.manual_seed(0)
            net = torch.nn.Sequential(mlp(device), torch.nn.Dropout(0.5))
            x = leaf(device, 3, 4)
            torch.manual_seed(1)
            out = checkpoint(net, x, use_reentrant=reentrant)
            out.square().sum().backward()
            return [out, x.grad, *(p.grad for p in net.parameters())]

        assert_same(body)

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_equals_no_checkpoint(self, reentrant):
        torch.manual_seed(0)
        net, x = torch.nn.Sequential(mlp(support.DEVICE), torch.nn.Dropout(0.5)), None
        grads = []
        for wrap in (lambda f, t: f(t), lambda f, t: checkpoint(f, t, use_reentrant=reentrant)):
            x = leaf(support.DEVICE, 3, 4)
            torch.manual_seed(1)
            wrap(net, x).square().sum().backward()
            grads.append(x.grad.cpu())
        assert torch.equal(*grads)

    def test_sequential(self):
        def body(device):
            net, x = mlp(device), leaf(device, 3, 4)
            checkpoint_sequential(net, 2, x, use_reentrant=False).sum().backward()
            return [x.grad, *(p.grad for p in net.parameters())]

        assert_same(body)


class TestCustomFunctions:
    def test_function_with_saved_tensors(self):
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w, factor):
                ctx.save_for_backward(x, w)
                ctx.factor = factor
                ctx.set_materialize_grads(False)
                return x * w * factor, x + w

            @staticmethod
            def backward(ctx, g, other):
                x, w = ctx.saved_tensors
                assert other is None
                return g * w * ctx.factor, g * x * ctx.factor, None

        def body(device):
            x, w = leaf(device, 3), leaf(device, 3, scale=2.0)
            Scaled.apply(x, w, 2.0)[0].sum().backward()
            return [x.grad, w.grad]

        assert_same(body)

    def test_function_that_marks_dirty(self):
        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                return x.mul_(2)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx, g):
                return g * 2

        def body(device):
            x = leaf(device, 3)
            y = x.clone()
            Doubled.apply(y[:2])
            y.square().sum().backward()
            return [x.grad, y]

        assert_same(body)

    def test_custom_op(self):
        @torch.library.custom_op("tiledev_tests::scaled_sum", mutates_args=())
        def scaled_sum(x: torch.Tensor, factor: float) -> torch.Tensor:
            return (x * factor).sum()

        scaled_sum.register_autograd(
            lambda ctx, g: (g.expand(ctx.shape) * ctx.factor, None),
            setup_context=lambda ctx, inputs, output: (
                setattr(ctx, "shape", inputs[0].shape),
                setattr(ctx, "factor", inputs[1]),
            ),
        )

        def body(device):
            x = leaf(device, 3)
            out = scaled_sum(x, 2.0)
            out.backward()
            return [out, x.grad]

        assert_same(body)

"""Autograd on the device: hooks, accumulation, modes, double backward."""

import pytest
import torch

from tests import support
from tests.compare import assert_same
from tests.device.models import leaf, mlp


class TestBackward:
    def test_shared_and_unused_inputs(self):
        def body(device):
            x, y, z = leaf(device, 3), leaf(device, 3), leaf(device, 3)
            out = (x * y + x.exp()).sum() * 2
            return torch.autograd.grad(out, [x, y, z], allow_unused=True)[:2]

        assert_same(body)

    def test_twice_needs_retain_graph(self):
        def body(device):
            x = leaf(device, 3)
            loss = x.exp().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            loss.backward()

        assert_same(body)

    def test_retained_graph_accumulates(self):
        def body(device):
            x = leaf(device, 3)
            hidden = x.exp()
            hidden.retain_grad()
            loss = hidden.square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            return [x.grad, hidden.grad]

        assert_same(body)

    def test_through_views_and_in_place(self):
        def body(device):
            x = leaf(device, 4, 3)
            y = x.clone()
            y[1:3].mul_(2)
            y.t()[0].exp_()
            y[:, 2] = y[:, 1]
            (y.unfold(0, 2, 1).sum() + y.diagonal().prod()).backward()
            return [x.grad, y]

        assert_same(body)

    def test_in_place_on_a_saved_tensor_is_refused(self):
        def body(device):
            x = leaf(device, 3)
            y = x.exp()
            z = y.sum()
            y.add_(1)
            z.backward()
            (y * 1).sum().backward()

        assert_same(body)

    def test_in_place_on_a_leaf_is_refused(self):
        assert_same(lambda device: leaf(device, 3).add_(1))

    def test_across_devices(self):
        def body(device):
            x, w = leaf("cpu", 3), leaf(device, 3)
            y = (x.to(device, copy=True) * w).to("cpu", copy=True)
            y.sin().sum().backward()
            assert x.grad.device.type == "cpu"
            return [x.grad.to(device), w.grad]

        assert_same(body)

    def test_modes(self):
        def body(device):
            x = leaf(device, 3)
            with torch.no_grad():
                a = x * 2
            with torch.set_grad_enabled(False), torch.enable_grad():
                b = x * 2
            with torch.inference_mode():
                c = x * 2
                d = c + 1
            return [a, b, d.clone(), [a.requires_grad, b.requires_grad, c.is_inference()]]

        assert_same(body)

    def test_saving_an_inference_tensor_is_refused(self):
        def body(device):
            with torch.inference_mode():
                c = torch.ones(3, device=device)
            return leaf(device, 3) * c

        assert_same(body)

    def test_anomaly_mode_names_the_forward_call(self):
        x = torch.zeros(1, device=support.DEVICE, requires_grad=True)
        with (
            torch.autograd.detect_anomaly(check_nan=True),
            pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
            pytest.raises(RuntimeError, match=r"SqrtBackward0.*nan"),
        ):
            (x.sqrt() * 0).sum().backward()


class TestHooks:
    def test_tensor_hooks(self):
        def body(device):
            seen, x = [], leaf(device, 3)
            y = x * 2
            y.register_hook(lambda g: g * 3)
            x.register_hook(lambda g: seen.append(g.clone()))
            x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.clone()))
            y.sum().backward()
            return [x.grad, *seen]

        assert_same(body)

    def test_module_hooks(self):
        def body(device):
            net, seen = mlp(device), []
            net[0].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
            net[1].register_forward_hook(lambda m, args, out: out * 2)
            net[2].register_full_backward_hook(lambda m, gin, gout: seen.extend([*gin, *gout]))
            net(torch.ones(3, 4, device=device, requires_grad=True)).sum().backward()
            return [*seen, *(p.grad for p in net.parameters())]

        assert_same(body)

    def test_saved_tensor_hooks(self):
        def body(device):
            x, packed = leaf(device, 3), []

            def pack(tensor):
                packed.append(tensor.shape)
                return tensor.to("cpu", copy=True)

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(device)):
                y = (x.exp() * x).sum()
            y.backward()
            return [x.grad, packed]

        assert_same(body)

    def test_save_on_cpu(self):
        def body(device):
            x = leaf(device, 3)
            with torch.autograd.graph.save_on_cpu():
                y = (x.exp() * x).sum()
            y.backward()
            return x.grad

        assert_same(body)

    def test_multi_grad_hook(self):
        def body(device):
            x, y, seen = leaf(device, 3), leaf(device, 3), []
            torch.autograd.graph.register_multi_grad_hook((x, y), seen.extend)
            (x * y).sum().backward()
            return seen

        assert_same(body)


class TestAccumulation:
    def test_over_several_backwards(self):
        def body(device):
            net = mlp(device)
            for step in range(4):
                net(torch.full((3, 4), 0.1 * step, device=device)).square().mean().backward()
            return [p.grad for p in net.parameters()]

        assert_same(body)

    def test_the_gradient_stays_the_same_tensor(self):
        x = leaf(support.DEVICE, 3)
        (x * 2).sum().backward()
        first, pointer = x.grad, x.grad.data_ptr()
        (x * 3).sum().backward()
        assert x.grad is first
        assert x.grad.data_ptr() == pointer
        assert x.grad.tolist() == [5, 5, 5]

    @pytest.mark.parametrize("flush", [False, True])
    def test_the_first_gradient_is_stolen(self, flush):
        """AccumulateGrad takes the incoming tensor over if nobody else holds it: no copy."""
        x, pointers = leaf(support.DEVICE, 3), []

        class Identity(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                return value.clone()

            @staticmethod
            def backward(ctx, gradient):
                fresh = gradient * 2
                if flush:
                    support.synchronize()
                pointers.append(fresh.data_ptr())
                return fresh

        Identity.apply(x).sum().backward()
        assert x.grad.data_ptr() == pointers[0]

    def test_zero_grad(self):
        def body(device):
            net = mlp(device)
            for set_to_none in (True, False, True):
                net(torch.ones(1, 4, device=device)).sum().backward()
                net.zero_grad(set_to_none=set_to_none)
            net(torch.ones(1, 4, device=device)).sum().backward()
            return [p.grad for p in net.parameters()]

        assert_same(body)

    def test_gradient_strides_follow_the_parameter(self):
        def body(device):
            x = torch.ones(3, 4).t().to(device, copy=True).requires_grad_()
            (x * torch.arange(12.0, device=device).view(4, 3)).sum().backward()
            return [x.grad, x]

        assert_same(body)

    def test_clipping(self):
        def body(device):
            net = mlp(device)
            (net(torch.ones(3, 4, device=device)) * 100).sum().backward()
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            return [norm, *(p.grad for p in net.parameters())]

        assert_same(body)


class TestHigherOrder:
    def test_double_backward(self):
        def body(device):
            x = leaf(device, 4)
            (first,) = torch.autograd.grad(x.sin().prod(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
            (third,) = torch.autograd.grad(second.sum(), x)
            return [first, second, third]

        assert_same(body)

    def test_gradient_penalty(self):
        def body(device):
            net, x = mlp(device), torch.full((3, 4), 0.3, device=device, requires_grad=True)
            (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            (slope.norm(dim=1) - 1).square().mean().backward()
            return [x.grad, *(p.grad for p in net.parameters() if p.grad is not None)]

        assert_same(body)

    def test_gradcheck(self):
        x = torch.randn(3, 2, dtype=torch.float64).to(support.DEVICE).requires_grad_()
        assert torch.autograd.gradcheck(lambda t: (t.exp() @ t.mT).tanh(), x)
        assert torch.autograd.gradgradcheck(lambda t: t.exp().square(), x)

    def test_autograd_functional(self):
        def body(device):
            x = leaf(device, 3).detach()
            jacobian = torch.autograd.functional.jacobian(lambda t: t.exp() * t.sum(), x)
            return [jacobian, torch.autograd.functional.hessian(lambda t: t.sin().prod(), x)]

        assert_same(body)

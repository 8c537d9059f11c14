"""Networks on the device: moving modules, recurrent and attention layers, convolutions."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests import support
from tests.compare import assert_same


def run(net, *inputs, device, train=True, backward=True):
    """Outputs, gradients and buffers of a copy of `net` on `device`."""
    net = copy.deepcopy(net).to(device).train(train)
    inputs = [x.to(device, copy=True) for x in inputs]
    for x in inputs:
        x.requires_grad_(x.is_floating_point())
    support.seed(1)
    out = net(*inputs)
    if not backward:
        return out
    outs = [out] if isinstance(out, torch.Tensor) else list(_tensors(out))
    sum(o.square().sum() for o in outs if o.requires_grad).backward()
    grads = [x.grad for x in [*inputs, *net.parameters()] if x.grad is not None]
    return [*outs, *grads, *net.buffers()]


def _tensors(value):
    for item in value:
        if isinstance(item, torch.Tensor):
            yield item
        elif item is not None:
            yield from _tensors(item)


def check(net, *inputs, train=True, backward=True, **tolerance):
    tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-5}
    assert_same(
        lambda device: run(net, *inputs, device=device, train=train, backward=backward), **tolerance
    )


class TestModuleTo:
    def test_tied_weights_stay_tied(self):
        net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
        net[1].weight = net[0].weight
        before = net[0].weight
        net.to(support.DEVICE)
        assert net[1].weight is net[0].weight is before
        assert before.device.type == torch.device(support.DEVICE).type
        net.to("cpu")
        assert net[1].weight is net[0].weight is before

    def test_an_optimizer_made_before_keeps_its_parameters(self):
        net = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        net.to(support.DEVICE)
        net(torch.ones(1, 3, device=support.DEVICE)).sum().backward()
        before = net.bias.detach().clone()
        optimizer.step()
        assert torch.equal(net.bias, before - 1)

    def test_gradients_and_buffers_move_too(self):
        net = nn.BatchNorm1d(3)
        net(torch.randn(4, 3)).sum().backward()
        expected = net.weight.grad.clone()
        net.to(support.DEVICE)
        kind = torch.device(support.DEVICE).type
        assert {t.device.type for t in [net.weight.grad, net.running_mean]} == {kind}
        assert torch.equal(net.weight.grad.cpu(), expected)

    def test_half_and_back(self):
        def body(device):
            net = nn.Linear(3, 2).to(device).to(torch.bfloat16)
            out = net(torch.ones(1, 3, dtype=torch.bfloat16, device=device))
            return [out, *net.float().parameters()]

        assert_same(body)

    def test_to_empty_and_meta(self):
        with torch.device("meta"):
            net = nn.Linear(3, 2)
        net = net.to_empty(device=support.DEVICE)
        nn.init.ones_(net.weight)
        nn.init.zeros_(net.bias)
        assert net(torch.ones(1, 3, device=support.DEVICE)).tolist() == [[3, 3]]

    def test_load_state_dict_both_ways(self):
        source, target = nn.Linear(3, 2), nn.Linear(3, 2).to(support.DEVICE)
        target.load_state_dict(source.state_dict())
        assert torch.equal(target.weight.cpu(), source.weight)
        other = nn.Linear(3, 2)
        other.load_state_dict(target.state_dict())
        assert torch.equal(other.weight, source.weight)
        target.load_state_dict(source.state_dict(), assign=True)
        assert target.weight.device.type == "cpu"

    def test_parametrizations_and_init(self):
        def body(device):
            net = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)).to(device)
            spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)).to(device)
            support.seed(1)  # the layers above have drawn from the CPU's generator
            orthogonal = nn.init.orthogonal_(torch.empty(3, 3, device=device))
            kaiming = nn.init.kaiming_uniform_(torch.empty(4, 3, device=device))
            x = torch.ones(1, 3, device=device)
            return [net(x), spectral(x), orthogonal, kaiming, nn.init.trunc_normal_(kaiming)]

        assert_same(body, rtol=1e-4, atol=1e-5)


class TestRecurrent:
    @pytest.mark.parametrize("bidirectional", [False, True])
    @pytest.mark.parametrize("layers", [1, 2])
    @pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
    def test_layers(self, kind, layers, bidirectional):
        net = getattr(nn, kind)(
            3, 4, layers, batch_first=True, bidirectional=bidirectional, dropout=0.2 * (layers > 1)
        )
        check(net, torch.randn(2, 5, 3))
        check(net, torch.randn(2, 5, 3), train=False)

    @pytest.mark.parametrize("layers", [1, 3])
    @pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
    def test_layers_of_some_size(self, kind, layers):
        check(getattr(nn, kind)(16, 24, layers), torch.randn(6, 9, 16))
        check(getattr(nn, kind)(40, 60, layers, bidirectional=True), torch.randn(5, 32, 40))

    @pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
    def test_cells_and_packed_sequences(self, kind):
        check(getattr(nn, f"{kind}Cell")(3, 4), torch.randn(2, 3))
        net = getattr(nn, kind)(3, 4)

        class Packed(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, x):
                packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3], enforce_sorted=False)
                return nn.utils.rnn.pad_packed_sequence(self.net(packed)[0])[0]

        check(Packed(), torch.randn(5, 2, 3))

    def test_projection_and_no_bias(self):
        check(nn.LSTM(3, 4, proj_size=2, bias=False), torch.randn(5, 2, 3))
        check(nn.RNN(3, 4, nonlinearity="relu"), torch.randn(5, 2, 3))


class TestAttention:
    @pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize("activation", ["relu", "gelu"])
    def test_transformer_encoder(self, train, norm_first, activation):
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=True, norm_first=norm_first, activation=activation
        )
        net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        check(net, torch.randn(2, 5, 8), train=train)

    def test_encoder_in_eval_without_gradients(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        x = torch.randn(2, 5, 8)

        def body(device):
            with torch.no_grad():
                return copy.deepcopy(layer).to(device)(x.to(device))

        assert_same(body, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("weights", [False, True])
    @pytest.mark.parametrize("kind", ["self", "cross", "masked", "padded", "causal"])
    def test_multihead_attention(self, kind, weights):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                other = {"kdim": 6, "vdim": 6} if kind == "cross" else {}
                self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **other)

            def forward(self, x, y):
                y = y if kind == "cross" else x
                options = {}
                if kind == "masked":
                    options["attn_mask"] = torch.eye(4, device=x.device).bool()
                if kind == "padded":
                    padding = torch.zeros(2, 4, dtype=torch.bool, device=x.device)
                    padding[1, 2:] = True
                    options["key_padding_mask"] = padding
                if kind == "causal":
                    mask = nn.Transformer.generate_square_subsequent_mask(4, device=x.device)
                    options |= {"attn_mask": mask, "is_causal": True}
                return self.attention(x, y, y, need_weights=weights, **options)

        check(Net(), torch.randn(2, 4, 8), torch.randn(2, 4, 6))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"is_causal": True},
            {"scale": 0.3},
            {"mask": "bool"},
            {"mask": "float"},
            {"dropout_p": 0.5},
            {"enable_gqa": True},
            {"mask": "bool", "is_causal": False, "scale": 2.0},
        ],
        ids=str,
    )
    def test_scaled_dot_product_attention(self, options, dtype):
        options = dict(options)
        mask = options.pop("mask", None)
        heads = 1 if options.get("enable_gqa") else 2
        query = torch.randn(2, 2, 5, 4, dtype=dtype)
        key, value = (
            torch.randn(2, heads, 6, 4, dtype=dtype),
            torch.randn(2, heads, 6, 4, dtype=dtype),
        )
        masks = {
            "bool": torch.rand(5, 6) > 0.3,
            "float": torch.randn(5, 6, dtype=dtype),
            None: None,
        }

        def body(device):
            leaves = [t.to(device, copy=True).requires_grad_() for t in (query, key, value)]
            given = None if mask is None else masks[mask].to(device)
            support.seed(1)
            out = F.scaled_dot_product_attention(*leaves, attn_mask=given, **options)
            out.float().square().sum().backward()
            return [out, *(leaf.grad for leaf in leaves)]

        loose = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
        assert_same(body, **(loose or {"rtol": 1e-4, "atol": 1e-5}))


class TestConvolution:
    @pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize(
        "memory_format", [torch.contiguous_format, torch.channels_last], ids=str
    )
    def test_net_with_batch_norm(self, memory_format, train):
        net = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 4, 3, stride=2, groups=2),
            nn.GroupNorm(2, 4),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(16, 3),
        ).to(memory_format=memory_format)
        x = torch.randn(2, 3, 10, 10).to(memory_format=memory_format)
        check(net, x, train=train, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("dims", [1, 2, 3])
    @pytest.mark.parametrize("transposed", [False, True])
    def test_layers(self, dims, transposed):
        kind = getattr(nn, f"Conv{'Transpose' * transposed}{dims}d")
        x = torch.randn(2, 4, *[6] * dims)
        check(kind(4, 6, 3, stride=2, padding=1, groups=2), x, rtol=1e-3, atol=1e-4)
        check(kind(4, 2, 2, dilation=2, bias=False), x, rtol=1e-3, atol=1e-4)
        check(kind(4, 2, 1), x[0], rtol=1e-3, atol=1e-4)

    def test_channels_last_is_kept(self):
        net = nn.Conv2d(4, 8, 3).to(support.DEVICE, memory_format=torch.channels_last)
        x = torch.randn(2, 4, 8, 8).to(support.DEVICE, memory_format=torch.channels_last)
        assert net.weight.is_contiguous(memory_format=torch.channels_last)
        assert net(x).is_contiguous(memory_format=torch.channels_last)


class TestEmbeddingsAndLosses:
    def test_embeddings(self):
        index = torch.tensor([[0, 3, 3], [5, 1, 0]])
        check(nn.Embedding(6, 4, padding_idx=0), index)
        check(nn.Embedding(6, 4, max_norm=1.0, scale_grad_by_freq=True), index)
        for mode in ("sum", "mean", "max"):
            check(nn.EmbeddingBag(6, 4, mode=mode), index)

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    def test_losses(self, reduction):
        def body(device):
            logits = torch.randn(4, 3).to(device).requires_grad_()
            target = torch.tensor([0, 2, 1, -100], device=device)
            dense = torch.rand(4, 3).to(device)
            weight = torch.tensor([1.0, 2.0, 3.0], device=device)
            losses = [
                F.cross_entropy(logits, target, weight, reduction=reduction, label_smoothing=0.1),
                F.cross_entropy(logits, dense, reduction=reduction),
                F.nll_loss(F.log_softmax(logits, 1), target, reduction=reduction),
                F.mse_loss(logits, dense, reduction=reduction),
                F.smooth_l1_loss(logits, dense, reduction=reduction),
                F.huber_loss(logits, dense, reduction=reduction),
                F.binary_cross_entropy_with_logits(logits, dense, weight, reduction=reduction),
                F.kl_div(F.log_softmax(logits, 1), dense, reduction=reduction),
                F.multi_margin_loss(logits, target.clamp(0), reduction=reduction),
            ]
            return [*losses, *(torch.autograd.grad(loss.sum(), logits)[0] for loss in losses)]

        assert_same(body, rtol=1e-4, atol=1e-5)

    def test_normalisation_updates_its_buffers(self):
        net = nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.BatchNorm1d(3, affine=False))

        def body(device):
            mine = copy.deepcopy(net).to(device)
            for step in range(3):
                mine(torch.randn(5, 3).to(device) + step)
            out = mine.eval()(torch.ones(2, 3, device=device))
            return [out, *mine.buffers()]

        assert_same(body, rtol=1e-4, atol=1e-5)

"""C++ ops of other packages, compiled against PyTorch alone."""

import pytest
import torch
from torch.utils import cpp_extension

import tiledev
from tests import support
from tests.compare import assert_same

NAME = "tiledev_cpp_ops"
SOURCE = """
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

using at::Tensor;

Tensor scaled(const Tensor& x, double factor) {
  TORCH_CHECK(x.device().is_cpu(), "a host kernel met ", x.device());
  const Tensor in = x.contiguous();
  Tensor out = at::empty_like(in);
  for (int64_t i = 0; i < in.numel(); ++i) {
    out.mutable_data_ptr<float>()[i] = in.const_data_ptr<float>()[i] * factor;
  }
  return out;
}

Tensor scaled_meta(const Tensor& x, double) {
  return at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
}

Tensor& add_one_(Tensor& x) {
  TORCH_CHECK(x.device().is_cpu(), "a host kernel met ", x.device());
  return x.add_(1);
}

TORCH_LIBRARY(tiledev_cpp_ops, m) {
  m.def("scaled(Tensor x, float factor) -> Tensor");
  m.def("bare(Tensor x, float factor) -> Tensor");
  m.def("add_one_(Tensor(a!) x) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(tiledev_cpp_ops, CPU, m) {
  m.impl("scaled", &scaled);
  m.impl("bare", &scaled);
  m.impl("add_one_", &add_one_);
}
TORCH_LIBRARY_IMPL(tiledev_cpp_ops, Meta, m) { m.impl("scaled", &scaled_meta); }
"""


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    """The compiled ops: about ten seconds."""
    if not cpp_extension.is_ninja_available():
        pytest.skip("building a C++ op needs ninja on the PATH")
    cpp_extension.load_inline(
        NAME,
        SOURCE,
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O0"],
        build_directory=str(tmp_path_factory.mktemp("cpp_ops")),
    )

    def keep_factor(ctx, inputs, output):
        ctx.factor = inputs[1]

    torch.library.register_autograd(
        f"{NAME}::scaled",
        lambda ctx, grad: (torch.ops.tiledev_cpp_ops.scaled(grad, ctx.factor), None),
        setup_context=keep_factor,
    )
    return torch.ops.tiledev_cpp_ops


def given(device):
    return torch.linspace(-2, 3, 12).reshape(3, 4).to(device)


def test_with_a_meta_kernel_it_is_recorded(ops):
    before = support.fallback_stats()
    assert_same(lambda device: [ops.scaled(given(device), f) for f in (2.0, -1.0)])
    assert_same(lambda device: ops.scaled(given(device).t(), 2.0))
    if support.ON_TILEDEV:
        out = ops.scaled(given("tiledev"), 2.0)
        assert f"{NAME}::scaled" in tiledev.pending_op_names()
        assert out.shape == (3, 4)
    assert support.fallback_stats() == before


@pytest.mark.filterwarnings("ignore:.*cannot be recorded")
def test_without_one_it_goes_through_the_fallback(ops):
    before = support.fallback_stats()
    assert_same(lambda device: ops.bare(given(device), 2.0))

    def in_place(device):
        x = given(device)
        ops.add_one_(x[1])
        return x

    assert_same(in_place)
    grown = support.stats_since(before, support.fallback_stats())
    expected = {f"{NAME}::bare": 1, f"{NAME}::add_one_": 1}
    assert grown == (expected if support.ON_TILEDEV else {})


def test_gradients(ops):
    def body(device):
        x = given(device).requires_grad_()
        ops.scaled(x.exp(), 2.0).square().sum().backward()
        return x.grad

    assert_same(body)


def test_opcheck(ops, device):
    result = torch.library.opcheck(ops.scaled.default, (given(device), 2.0))
    assert set(result.values()) == {"SUCCESS"}

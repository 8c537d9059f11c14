"""Tensors on the device behave as on the CPU: creation, readout, dtypes, scalars."""

import numpy
import pytest
import torch

from tests import support
from tests.compare import assert_same

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
ARITHMETIC = [*FLOATS, *INTS, torch.bool, torch.complex64, torch.complex128]
EVERY_DTYPE = [*ARITHMETIC, *UNSIGNED, torch.complex32, *FLOAT8]


def dtype_id(dtype):
    return str(dtype).removeprefix("torch.")


class TestCreation:
    @pytest.mark.parametrize("dtype", ARITHMETIC, ids=dtype_id)
    def test_constants(self, dtype):
        assert_same(
            lambda device: [
                torch.zeros(2, 3, dtype=dtype, device=device),
                torch.ones(3, dtype=dtype, device=device),
                torch.full((2, 0, 3), 1, dtype=dtype, device=device),
                torch.eye(3, 2, dtype=dtype, device=device),
                torch.tensor([[1, 0], [0, 1]], dtype=dtype, device=device),
                torch.scalar_tensor(1, dtype=dtype, device=device),
            ]
        )

    def test_ranges(self):
        assert_same(
            lambda device: [
                torch.arange(7, device=device),
                torch.arange(1, 10, 3, device=device),
                torch.arange(0.0, 1.0, 0.25, device=device),
                torch.linspace(0, 1, 5, device=device),
                torch.logspace(0, 2, 3, device=device),
                torch.tril_indices(3, 3, device=device),
                torch.cartesian_prod(
                    torch.arange(2, device=device), torch.arange(3, device=device)
                ),
            ]
        )

    def test_like_and_new(self):
        def body(device):
            base = torch.arange(6.0, device=device).reshape(2, 3).t()
            return [
                torch.zeros_like(base),
                torch.ones_like(base, dtype=torch.int64),
                torch.full_like(base, 3, memory_format=torch.contiguous_format),
                base.new_zeros(2),
                base.new_tensor([1, 2]),
                base.new_full((2, 2), 7.0),
                torch.empty_like(base).fill_(1),
            ]

        assert_same(body)

    def test_from_python_and_numpy(self):
        array = numpy.arange(6, dtype=numpy.int16).reshape(2, 3)
        assert_same(
            lambda device: [
                torch.tensor(array, device=device),
                torch.as_tensor(array, device=device) + 1,
                torch.asarray([1.5, 2.5], device=device),
                torch.tensor(True, device=device),
                torch.tensor([], device=device),
                torch.from_numpy(array).to(device)[:, 1:],
            ]
        )

    def test_default_device(self):
        with torch.device(support.DEVICE):
            made = torch.ones(2) + torch.arange(2)
        assert made.device.type == torch.device(support.DEVICE).type
        assert made.tolist() == [1, 2]

    def test_a_negative_size_is_refused(self):
        assert_same(lambda device: torch.empty(2, -1, device=device))

    def test_deterministic_mode_fills_empty_tensors(self):
        torch.use_deterministic_algorithms(True)
        try:
            assert torch.empty(3, device=support.DEVICE).isnan().all()
            empty = torch.empty_strided((2, 2), (1, 2), dtype=torch.int32, device=support.DEVICE)
            assert (empty == torch.iinfo(torch.int32).max).all()
        finally:
            torch.use_deterministic_algorithms(False)


class TestReadout:
    @pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=dtype_id)
    def test_there_and_back(self, dtype):
        source = torch.tensor([0, 1, 2, 1, 0, 1]).to(dtype)
        back = source.to(support.DEVICE).cpu()
        assert back.dtype == dtype
        assert back.view(torch.uint8).tolist() == source.view(torch.uint8).tolist()

    def test_item_tolist_bool_int_len(self):
        def body(device):
            x = torch.tensor([[1.5, 2.5], [3.5, 4.5]], device=device)
            return [
                x[1, 0].item(),
                x.tolist(),
                x.shape,
                len(x),
                bool(x.any()),
                int(x.sum()),
                float(x[0, 0]),
                [row.sum().item() for row in x],
                complex(torch.tensor(1 + 2j, device=device)),
                torch.tensor([3], device=device).item(),
                range(4)[torch.tensor(2, device=device)],
                f"{x[0, 1]:.2f}",
                4.5 in x,
            ]

        assert_same(body)

    def test_item_of_many_elements_is_refused(self):
        assert_same(lambda device: torch.ones(2, device=device).item())
        assert_same(lambda device: bool(torch.ones(2, device=device)))

    @pytest.mark.parametrize("dtype", [*ARITHMETIC, *UNSIGNED], ids=dtype_id)
    def test_print(self, dtype):
        x = torch.tensor([[0, 1], [1, 0]]).to(dtype)
        text = repr(x.to(support.DEVICE))
        assert text.replace(f", device='{support.DEVICE}:0'", "") == repr(x)

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1000,), (50, 50)])
    def test_print_shapes(self, shape):
        x = torch.arange(torch.Size(shape).numel()).reshape(shape) * 0.5
        text = "".join(repr(x.to(support.DEVICE)).split())
        assert text.replace(f",device='{support.DEVICE}:0'", "") == "".join(repr(x).split())

    def test_numpy_needs_the_cpu(self):
        x = torch.arange(3, device=support.DEVICE)
        assert x.cpu().numpy().tolist() == [0, 1, 2]
        if support.ON_TILEDEV:
            with pytest.raises(TypeError):
                x.numpy()

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=dtype_id)
    def test_conjugate_and_negative_bits(self, dtype):
        def body(device):
            x = torch.tensor([1 + 2j, 3 - 4j], dtype=dtype, device=device)
            conjugate, negative = x.conj(), x.conj().imag
            out = torch.zeros(2, dtype=dtype, device=device)
            out.copy_(conjugate)
            return [
                [conjugate.is_conj(), negative.is_neg()],
                conjugate.cpu().resolve_conj(),
                negative.cpu().resolve_neg(),
                conjugate.resolve_conj(),
                negative.resolve_neg(),
                conjugate.clone(),
                out,
                conjugate.tolist(),
                negative[1].item(),
                conjugate @ x,
                conjugate.mul(2j),
                negative + 1,
                torch.view_as_real(conjugate.resolve_conj()),
                x.conj().add_(1),
                x,
                str(conjugate.tolist()),
            ]

        assert_same(body)


class TestDtypes:
    @pytest.mark.parametrize("source", EVERY_DTYPE, ids=dtype_id)
    def test_casts(self, source):
        values = torch.tensor([0, 1, 2, 1]).to(source)

        def body(device):
            moved, done = values.to(device), []
            for target in EVERY_DTYPE:
                try:
                    done.append(moved.to(target).cpu().view(torch.uint8))
                except (NotImplementedError, RuntimeError) as error:
                    done.append(torch.tensor(len(type(error).__name__)))
            return [tensor.cpu() for tensor in done]

        want, got = body("cpu"), body(support.DEVICE)
        for target, mine, theirs in zip(EVERY_DTYPE, got, want, strict=True):
            assert mine.tolist() == theirs.tolist(), f"{source} -> {target}"

    @pytest.mark.parametrize("left", ARITHMETIC, ids=dtype_id)
    def test_promotion(self, left):
        def body(device):
            x, done = torch.tensor([1, 2, 0]).to(left).to(device), []
            for right in ARITHMETIC:
                done.append(x * torch.tensor([1, 0, 1]).to(right).to(device))
                done.append(x + torch.tensor(1).to(right).to(device))
            return [*done, x * 2, x * 2.5, 2 * x, True * x, x + 1j]

        assert_same(body)

    @pytest.mark.parametrize("dtype", UNSIGNED, ids=dtype_id)
    def test_wide_unsigned(self, dtype):
        top = torch.iinfo(dtype).max

        def body(device):
            x = torch.tensor([0, 1, top], dtype=dtype, device=device)
            return [x, x.clone(), x == x, x[1:], torch.cat([x, x]), x.tolist(), x.to(torch.float64)]

        assert_same(body)

    def test_edges_of_integers(self):
        def body(device):
            bytes_ = torch.tensor([200, 100], dtype=torch.uint8, device=device)
            small = torch.tensor([100, 100], dtype=torch.int8, device=device)
            large = torch.tensor([2**24 + 1, 2**53 + 1], device=device)
            signed = torch.tensor([-7, 7], device=device)
            return [
                bytes_ + bytes_,
                bytes_ - 201,
                small.prod(),
                small + small,
                large + 1,
                large * 3,
                signed // 2,
                signed % 3,
                torch.div(signed, 2, rounding_mode="trunc"),
                signed / 2,
                2 // torch.tensor([3, -3], device=device),
                signed.bool().sum(),
                signed >> 1,
                ~signed,
            ]

        assert_same(body)

    def test_nan_and_infinity(self):
        def body(device):
            x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1.0], device=device)
            return [
                x.relu(),
                x.clamp(-1, 1),
                torch.maximum(x, torch.zeros(5, device=device)),
                x.max(),
                x.nansum(),
                x.isfinite(),
                x.sign(),
                torch.fmax(x, torch.ones(5, device=device)),
                x.sort().values,
                x == x,
                torch.nn.functional.leaky_relu(x),
                x.nan_to_num(),
            ]

        assert_same(body)


class TestScalars:
    """Python numbers and CPU 0-d tensors among operands."""

    def test_cpu_zero_dim_operands(self):
        def body(device):
            x = torch.tensor([1, 2, 3], device=device)
            half = torch.ones(2, dtype=torch.bfloat16, device=device)
            two, real = torch.tensor(2), torch.tensor(2.5, dtype=torch.float64)
            return [
                x + two,
                two - x,
                x * real,
                real / x,
                half * real,
                x.clone().add_(two),
                torch.where(x > 1, x, two),
                x.clone().fill_(two),
                torch.lerp(x.float(), x.float(), torch.tensor(0.5)),
                torch.addcmul(x.float(), x.float(), real.float()),
                x == two,
                torch.pow(x, two),
                x.clamp(max=two),
                torch.full((2,), 3.0, device=device).copy_(real),
            ]

        assert_same(body)

    def test_a_cpu_operand_may_change_after_recording(self):
        factor = torch.tensor(2.0)
        x = torch.ones(3, device=support.DEVICE)
        product = x * factor
        filled = x.clone().fill_(factor)
        assigned = x.clone()
        assigned[1] = factor
        factor.fill_(5)
        assert product.tolist() == [2, 2, 2]
        assert filled.tolist() == [2, 2, 2]
        assert assigned.tolist() == [1, 2, 1]

    @pytest.mark.tiledev_only
    def test_a_larger_cpu_operand_is_refused(self):
        with pytest.raises(RuntimeError, match="device"):
            torch.ones(2, device=support.DEVICE) + torch.ones(2)

    def test_operators_with_numbers(self):
        def body(device):
            x = torch.tensor([1.0, -2.0, 3.0], device=device)
            half = x.to(torch.bfloat16)
            return [
                2 - x,
                2 / x,
                2**x,
                x**2,
                x // 2,
                7 % x,
                abs(x),
                -x,
                x > 0,
                (x > 0) & True,
                half * 0.1,
                half + 1,
                x.rsub(1, alpha=3),
                torch.rsub(x, 2),
                divmod(7, 2),
            ]

        assert_same(body)

"""Random numbers: the same seed gives the CPU's numbers, and seeding keeps its place among ops."""

import pytest
import torch
import torch.nn.functional as F

CASES = {
    "rand": lambda d, g: torch.rand(7, 3, device=d, generator=g),
    "rand double": lambda d, g: torch.rand(5, device=d, dtype=torch.float64, generator=g),
    "randn": lambda d, g: torch.randn(5, device=d, generator=g),
    "randn of 16 and more": lambda d, g: torch.randn(33, device=d, generator=g),
    "randn complex": lambda d, g: torch.randn(9, device=d, dtype=torch.complex64, generator=g),
    "randn bfloat16": lambda d, g: torch.randn(40, device=d, dtype=torch.bfloat16, generator=g),
    "randint": lambda d, g: torch.randint(-9, 1000, (20,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(50, device=d, generator=g),
    "normal": lambda d, g: torch.normal(
        torch.arange(20.0, device=d), torch.full((20,), 2.0, device=d), generator=g
    ),
    "normal of floats": lambda d, g: torch.normal(1.0, 3.0, (20,), device=d, generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((50,), 0.3, device=d), generator=g),
    "bernoulli_ float": lambda d, g: torch.empty(50, device=d).bernoulli_(0.7, generator=g),
    "bernoulli_ tensor": lambda d, g: torch.empty(50, device=d).bernoulli_(
        torch.full((50,), 0.2, device=d), generator=g
    ),
    "multinomial": lambda d, g: torch.multinomial(torch.arange(9.0, device=d), 4, generator=g),
    "multinomial replaced": lambda d, g: torch.multinomial(
        torch.arange(9.0, device=d), 30, replacement=True, generator=g
    ),
    "poisson": lambda d, g: torch.poisson(torch.full((30,), 4.0, device=d), generator=g),
    "binomial": lambda d, g: torch.binomial(
        torch.full((20,), 9.0, device=d), torch.full((20,), 0.4, device=d), generator=g
    ),
    "uniform_": lambda d, g: torch.empty(20, device=d).uniform_(-2, 5, generator=g),
    "normal_": lambda d, g: torch.empty(20, device=d).normal_(3, 2, generator=g),
    "exponential_": lambda d, g: torch.empty(20, device=d).exponential_(2, generator=g),
    "geometric_": lambda d, g: torch.empty(20, device=d).geometric_(0.2, generator=g),
    "cauchy_": lambda d, g: torch.empty(20, device=d).cauchy_(generator=g),
    "log_normal_": lambda d, g: torch.empty(20, device=d).log_normal_(generator=g),
    "random_": lambda d, g: torch.empty(20, device=d, dtype=torch.int64).random_(generator=g),
    "random_ to": lambda d, g: torch.empty(20, device=d).random_(3, 90, generator=g),
    "strided": lambda d, g: torch.zeros(8, 6, device=d).t()[::2].uniform_(generator=g),
}
DEFAULT_ONLY = {
    "rand_like": lambda d: torch.rand_like(torch.empty(4, 6, device=d).t()),
    "randn_like": lambda d: torch.randn_like(torch.empty(33, device=d)),
    "randint_like": lambda d: torch.randint_like(torch.empty(20, device=d), 50),
    "dropout": lambda d: F.dropout(torch.ones(60, device=d), 0.4),
    "dropout in place": lambda d: F.dropout(torch.ones(60, device=d), 0.4, inplace=True),
    "alpha_dropout": lambda d: F.alpha_dropout(torch.ones(60, device=d), 0.4, training=True),
    "feature dropout": lambda d: F.dropout2d(torch.ones(4, 5, 3, 3, device=d), 0.5),
    "rrelu": lambda d: F.rrelu(torch.linspace(-3, 3, 30, device=d), training=True),
    "gumbel_softmax": lambda d: F.gumbel_softmax(torch.zeros(5, 4, device=d)),
    "fractional_max_pool": lambda d: F.fractional_max_pool2d(
        torch.arange(64.0, device=d).view(1, 1, 8, 8), 2, output_ratio=(0.6, 0.6)
    ),
    "attention dropout": lambda d: F.scaled_dot_product_attention(
        *(torch.ones(1, 2, 4, 8, device=d) for _ in range(3)), dropout_p=0.5
    ),
    "Linear": lambda d: torch.nn.Linear(5, 7, device=d).weight.detach(),
    "orthogonal_": lambda d: torch.nn.init.orthogonal_(torch.empty(4, 4, device=d)),
    "trunc_normal_": lambda d: torch.nn.init.trunc_normal_(torch.empty(30, device=d)),
    "distribution": lambda d: torch.distributions.Gamma(torch.ones(9, device=d), 2.0).sample(),
}


def assert_same(on_device: torch.Tensor, on_cpu: torch.Tensor) -> None:
    torch.testing.assert_close(on_device.cpu(), on_cpu, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_seeded_default_generator(device, name):
    results = {}
    for place in ("cpu", device):
        torch.manual_seed(1234)
        results[place] = [CASES[name](place, None) for _ in range(3)]
    for on_device, on_cpu in zip(results[device], results["cpu"], strict=True):
        assert_same(on_device, on_cpu)


@pytest.mark.parametrize("name", CASES)
def test_own_generator(device, name):
    generators = {place: torch.Generator(place).manual_seed(77) for place in ("cpu", device)}
    for _ in range(2):
        assert_same(*(CASES[name](place, generators[place]) for place in (device, "cpu")))
    assert_same(torch.rand(3, device=device, generator=generators[device]),
                torch.rand(3, generator=generators["cpu"]))  # fmt: skip


@pytest.mark.parametrize("name", DEFAULT_ONLY)
def test_ops_without_a_generator_argument(device, name):
    results = {}
    for place in ("cpu", device):
        torch.manual_seed(99)
        results[place] = [DEFAULT_ONLY[name](place) for _ in range(2)] + [
            torch.rand(3, device=place)
        ]
    for on_device, on_cpu in zip(results[device], results["cpu"], strict=True):
        if name in ("attention dropout", "orthogonal_"):
            torch.testing.assert_close(on_device.cpu(), on_cpu)
        else:
            assert_same(on_device, on_cpu)


def test_backward_of_dropout_uses_the_same_mask(device):
    gradients = {}
    for place in ("cpu", device):
        torch.manual_seed(5)
        a = torch.ones(100, device=place, requires_grad=True)
        F.dropout(a, 0.3).sum().backward()
        gradients[place] = a.grad
    assert_same(gradients[device], gradients["cpu"])


class TestOrder:
    def test_a_seed_comes_after_the_ops_before_it(self, device):
        torch.manual_seed(1)
        before = torch.rand(4, device=device)
        torch.manual_seed(2)
        after = torch.rand(4, device=device)
        torch.manual_seed(1)
        assert_same(before, torch.rand(4))
        torch.manual_seed(2)
        assert_same(after, torch.rand(4))

    def test_numbers_that_nobody_reads_are_drawn_all_the_same(self, device):
        torch.manual_seed(1)
        torch.rand(4, device=device)
        second = torch.rand(4, device=device)
        torch.manual_seed(1)
        torch.rand(4)
        assert_same(second, torch.rand(4))

    def test_reading_in_another_order_changes_nothing(self, device):
        torch.manual_seed(1)
        draws = [torch.rand(4, device=device) for _ in range(5)]
        values = {index: draws[index].cpu() for index in (3, 0, 4, 1, 2)}
        torch.manual_seed(1)
        for index in range(5):
            assert_same(values[index], torch.rand(4))

    def test_two_generators_do_not_meet(self, device):
        first, second = (torch.Generator(device).manual_seed(seed) for seed in (1, 2))
        a = [torch.rand(2, device=device, generator=g) for g in (first, second, first)]
        check = torch.Generator().manual_seed(1)
        assert_same(a[0], torch.rand(2, generator=check))
        assert_same(a[2], torch.rand(2, generator=check))

    def test_a_state_includes_what_was_drawn_before_and_nothing_later(self, device):
        generator = torch.Generator(device).manual_seed(3)
        torch.rand(5, device=device, generator=generator)
        state = generator.get_state()
        first = torch.rand(5, device=device, generator=generator)
        generator.set_state(state)
        assert_same(first, torch.rand(5, device=device, generator=generator).cpu())


class TestGenerator:
    def test_facts(self, device):
        generator = torch.Generator(device)
        assert generator.device.type == torch.device(device).type
        assert generator.manual_seed(42) is generator
        assert generator.initial_seed() == 42
        assert generator.manual_seed(-1).initial_seed() == 2**64 - 1
        assert generator.seed() == generator.initial_seed()

    def test_state_has_the_layout_of_the_cpu(self, device):
        on_device, on_cpu = torch.Generator(device), torch.Generator()
        on_cpu.manual_seed(8)
        torch.randn(5, generator=on_cpu)
        on_device.set_state(on_cpu.get_state())
        assert torch.equal(on_device.get_state(), on_cpu.get_state())
        assert_same(
            torch.randn(5, device=device, generator=on_device), torch.randn(5, generator=on_cpu)
        )

    def test_a_wrong_state_is_refused(self, device):
        with pytest.raises((RuntimeError, TypeError)):
            torch.Generator(device).set_state(torch.zeros(3, dtype=torch.uint8))
        with pytest.raises((RuntimeError, TypeError)):
            torch.Generator(device).set_state(torch.zeros(3))

    def test_clone_state(self, device):
        generator = torch.Generator(device).manual_seed(6)
        torch.rand(2, device=device, generator=generator)
        clone = generator.clone_state()
        expected = torch.rand(2, device=device, generator=generator).cpu()
        assert_same(torch.rand(2, device=device, generator=clone), expected)

    @pytest.mark.tiledev_only
    def test_a_generator_of_another_device_is_refused(self):
        with pytest.raises(RuntimeError, match=r"[Gg]enerator"):
            torch.rand(2, device="tiledev", generator=torch.Generator("cpu"))
        with pytest.raises(RuntimeError, match=r"[Gg]enerator|same device"):
            torch.rand(2, generator=torch.Generator("tiledev"))


@pytest.mark.tiledev_only
class TestModuleFunctions:
    def test_default_generators(self):
        (generator,) = torch.tiledev.default_generators
        assert generator.device == torch.device("tiledev", 0)
        assert len(torch.tiledev.default_generators) == 1
        assert torch.tiledev.default_generators[-1].initial_seed() == generator.initial_seed()
        with pytest.raises(IndexError):
            torch.tiledev.default_generators[1]

    def test_manual_seed(self):
        torch.manual_seed(5)
        assert torch.tiledev.initial_seed() == 5
        for seeding in (torch.tiledev.manual_seed, torch.tiledev.manual_seed_all):
            seeding(11)
            a = torch.rand(3, device="tiledev")
            assert_same(a, torch.rand(3, generator=torch.Generator().manual_seed(11)))
        assert torch.initial_seed() == 5

    def test_random_seeds(self):
        seeds = set()
        for seeding in (torch.tiledev.seed, torch.tiledev.seed_all, torch.seed):
            seeding()
            seeds.add(torch.tiledev.initial_seed())
        assert len(seeds) == 3

    @pytest.mark.parametrize("where", [(), (0,), ("tiledev",), ("tiledev:0",)])
    def test_state_round_trip(self, where):
        state = torch.tiledev.get_rng_state(*where)
        assert state.device.type == "cpu"
        assert state.dtype == torch.uint8
        a = torch.rand(3, device="tiledev")
        torch.tiledev.set_rng_state(state, *where)
        assert torch.equal(a.cpu(), torch.rand(3, device="tiledev").cpu())
        states = torch.tiledev.get_rng_state_all()
        b = torch.rand(3, device="tiledev")
        torch.tiledev.set_rng_state_all(states)
        assert torch.equal(b.cpu(), torch.rand(3, device="tiledev").cpu())

    def test_the_state_is_that_of_the_cpu_after_the_same_draws(self):
        torch.manual_seed(4)
        torch.randn(11, device="tiledev")
        torch.randn(11)
        assert torch.equal(torch.tiledev.get_rng_state(), torch.get_rng_state())

    def test_fork_rng(self):
        torch.manual_seed(7)
        with torch.random.fork_rng(device_type="tiledev"):
            torch.manual_seed(100)
            torch.rand(3, device="tiledev")
        inside = torch.rand(3, device="tiledev")
        torch.manual_seed(7)
        assert_same(inside, torch.rand(3))
        with torch.random.fork_rng(devices=[0]):
            a = torch.rand(3, device="tiledev").cpu()
        assert torch.equal(a, torch.rand(3, device="tiledev").cpu())

"""Random numbers: their distributions (Kolmogorov-Smirnov tests at a fixed seed), their seeds, and torch's errors."""

import math

import pytest
import torch
import torch.nn.functional as F

stats = pytest.importorskip("scipy.stats", reason="distributions are compared with scipy's")

N = 40_000
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def empty(dtype=torch.float32, shape=(N,)):
    return torch.empty(shape, dtype=dtype, device="tpu")


def assert_distributed(x, distribution):
    """x follows a continuous scipy distribution. At a fixed seed this passes always or never."""
    assert stats.kstest(x.double().cpu().flatten().numpy(), distribution.cdf).pvalue > 1e-3


def assert_probabilities(x, probabilities):
    """x holds 0, 1, 2 ... as often as these say (chi-squared test)."""
    counts = torch.bincount(x.long().cpu().flatten(), minlength=len(probabilities)).double()
    assert len(counts) == len(probabilities)
    expected = torch.as_tensor(probabilities, dtype=torch.double)
    expected = expected / expected.sum() * counts.sum()
    assert (counts[expected == 0] == 0).all()
    kept = expected > 5
    assert stats.chisquare(counts[kept], expected[kept] * counts[kept].sum() / expected[kept].sum()).pvalue > 1e-3


def check_error(function, match):
    """The class and text of CPU torch's error."""
    with pytest.raises(Exception, match=match) as expected:
        function("cpu")
    with pytest.raises(type(expected.value), match=match):
        function("tpu")
        torch.tpu.synchronize()


# --- seeds --------------------------------------------------------------------------------------------------------------------

FILLS = {
    "uniform_": lambda x, **k: x.uniform_(**k),
    "normal_": lambda x, **k: x.normal_(**k),
    "random_": lambda x, **k: x.random_(**k),
    "random_.from": lambda x, **k: x.random_(2, 1000, **k),
    "bernoulli_": lambda x, **k: x.bernoulli_(**k),
    "bernoulli_.Tensor": lambda x, **k: x.bernoulli_(torch.full_like(x, 0.3), **k),
    "exponential_": lambda x, **k: x.exponential_(**k),
    "log_normal_": lambda x, **k: x.log_normal_(**k),
    "cauchy_": lambda x, **k: x.cauchy_(**k),
    "geometric_": lambda x, **k: x.geometric_(0.01, **k),
    "multinomial": lambda x, **k: torch.multinomial(x.fill_(1), 50, **k),
    "multinomial with replacement": lambda x, **k: torch.multinomial(x.fill_(1), 50, True, **k),
    "randperm": lambda x, **k: torch.randperm(1000, device=x.device, **k),
    "normal": lambda x, **k: torch.normal(x.fill_(1), x, **k),
    "poisson": lambda x, **k: torch.poisson(x.fill_(5), **k),
    "gamma": lambda x, **k: torch._standard_gamma(x.fill_(0.5), **k),
}


@pytest.mark.parametrize("fill", FILLS)
def test_seeds(fill):
    def draw(**options):
        return FILLS[fill](empty(shape=(1000,)), **options).cpu()

    torch.manual_seed(5)
    first, second = draw(), draw()
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(first, draw())
    assert torch.equal(second, draw())
    generator = torch.Generator("tpu").manual_seed(5)
    assert torch.equal(first, draw(generator=generator))
    assert torch.equal(second, draw(generator=generator))
    state = generator.get_state()
    third = draw(generator=generator)
    generator.set_state(state)
    assert torch.equal(third, draw(generator=generator))


def test_state_moves_on():
    generator = torch.Generator("tpu").manual_seed(1)
    offset = int.from_bytes(bytes(generator.get_state()[8:16].tolist()), "little")
    empty(shape=(10,)).uniform_(generator=generator)
    after = int.from_bytes(bytes(generator.get_state()[8:16].tolist()), "little")
    assert after > offset and after % 4 == 0


def test_no_correlation_between_calls():
    x, y = empty().normal_().cpu(), empty().normal_().cpu()
    assert abs(torch.corrcoef(torch.stack([x, y]))[0, 1]) < 5 / math.sqrt(N)
    assert abs(torch.corrcoef(torch.stack([x[1:], x[:-1]]))[0, 1]) < 5 / math.sqrt(N)


# --- floats -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype):
    x = empty(dtype).uniform_()
    assert x.dtype == dtype and x.min() >= 0 and x.max() < 1
    narrow = dtype in (torch.bfloat16, torch.float16)
    if not narrow:
        assert_distributed(x, stats.uniform())
        assert_distributed(empty(dtype).uniform_(-3, 5), stats.uniform(-3, 8))
    assert abs(x.double().mean() - 0.5) < 0.01
    y = empty(dtype).uniform_(1, 1.5)
    assert y.min() >= 1 and y.max() < 1.5
    assert (empty(dtype).uniform_(2, 2) == 2).all()
    assert len(torch.rand(N, dtype=dtype, device="tpu").cpu().unique()) > (200 if narrow else N - 200)


def test_uniform_never_rounds_up():
    x = empty(shape=(1 << 22,)).uniform_(1, 2)  # 2 - 2^-24 rounds to 2
    assert x.max() < 2 and x.min() >= 1


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype):
    x = empty(dtype).normal_()
    if dtype in (torch.float32, torch.float64):
        assert_distributed(x, stats.norm())
        assert_distributed(empty(dtype).normal_(2, 3), stats.norm(2, 3))
        assert_distributed(torch.randn(3, 5, 1001, dtype=dtype, device="tpu"), stats.norm())
    assert x.dtype == dtype and abs(x.double().mean()) < 0.03 and abs(x.double().std() - 1) < 0.03
    assert (empty(dtype, (7,)).normal_(2, 0) == 2).all()


def test_normal_tails():
    x = empty(shape=(1 << 22,)).normal_().abs().cpu()
    for limit in (3, 4, 5):
        expected = 2 * stats.norm.sf(limit) * x.numel()
        assert abs((x > limit).sum() - expected) < 5 * math.sqrt(expected) + 1
    assert x.isfinite().all()


def test_complex():
    x = torch.randn(N, dtype=torch.complex64, device="tpu")
    assert_distributed(x.real, stats.norm(0, math.sqrt(0.5)))
    assert_distributed(x.imag, stats.norm(0, math.sqrt(0.5)))
    y = torch.rand(N, dtype=torch.complex64, device="tpu")
    assert_distributed(y.real, stats.uniform())
    assert_distributed(y.imag, stats.uniform())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_distributions(dtype):
    assert_distributed(empty(dtype).exponential_(2.5), stats.expon(scale=1 / 2.5))
    assert_distributed(empty(dtype).log_normal_(0.5, 0.25), stats.lognorm(0.25, scale=math.exp(0.5)))
    assert_distributed(empty(dtype).cauchy_(1, 2), stats.cauchy(1, 2))
    assert (empty(dtype).exponential_() > 0).all()


def test_normal_of_tensors():
    mean, std = torch.arange(4.0, device="tpu"), torch.tensor([[1.0], [0.0], [2.0]], device="tpu")
    x = torch.normal(mean.expand(N // 4, 3, 4), std)
    assert x.shape == (N // 4, 3, 4)
    assert torch.equal(x[:, 1].cpu(), mean.cpu().expand(N // 4, 4))
    assert_distributed(x[:, 2, 3], stats.norm(3, 2))
    assert_distributed(torch.normal(mean.repeat(N // 4), 2.0) - mean.repeat(N // 4), stats.norm(0, 2))
    assert_distributed(torch.normal(5.0, torch.ones(N, device="tpu", dtype=torch.float64)), stats.norm(5, 1))
    assert torch.normal(1.0, 2.0, (2, 3), device="tpu").shape == (2, 3)


def test_views_and_empty():
    x = torch.zeros(6, 5, device="tpu")
    x[::2].t().uniform_(1, 2)
    assert (x[::2] >= 1).all() and (x[1::2] == 0).all()
    for name in FILLS:
        if "multinomial" not in name and name != "randperm":
            assert FILLS[name](empty(shape=(0, 3))).shape == (0, 3)
            assert FILLS[name](empty(shape=())).shape == ()


# --- integers -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.bfloat16])
def test_random_from_to(dtype):
    assert_probabilities(empty(dtype).random_(0, 7), [1] * 7)
    low = 100 if not dtype.is_signed else -3
    assert_probabilities(empty(dtype).random_(low, low + 5).long() - low, [1] * 5)
    assert_probabilities(empty(dtype).random_(3), [1] * 3)


def test_random_ranges():
    assert abs(empty(torch.bool).random_().float().mean() - 0.5) < 0.02
    limits = {
        torch.int64: 2**63 - 1,
        torch.int32: 2**31 - 1,
        torch.int16: 2**15 - 1,
        torch.int8: 127,
        torch.uint8: 255,
        torch.float32: 2**24,
        torch.float16: 2**11,
        torch.bfloat16: 2**8,
        torch.float64: 2**53,
    }
    for dtype, last in limits.items():
        x = empty(dtype).random_().double().cpu()
        assert 0 <= x.min() < last / 50 and last * 0.98 < x.max() <= last
    x = empty(torch.int64).random_(-(2**63), None).double().cpu()
    assert x.min() < -(2**62) and x.max() > 2**62
    x = empty(torch.int64).random_(-(2**40), 2**40).double().cpu()
    assert -(2**40) <= x.min() < -(2**39) and 2**39 < x.max() < 2**40
    x = empty(torch.int32).random_(-(2**31), 2**31 - 1).double().cpu()
    assert x.min() < -(2**30) and x.max() > 2**30
    x = empty(torch.int64).random_(2**32 - 3, 2**32 + 3).cpu()
    assert x.min() == 2**32 - 3 and x.max() == 2**32 + 2
    assert torch.randint(3, 9, (4, 5), device="tpu").shape == (4, 5)


@pytest.mark.parametrize("n", [0, 1, 2, 1000, 5000])
def test_randperm(n):
    for dtype in (torch.int64, torch.int32, torch.float32):
        x = torch.randperm(n, device="tpu", dtype=dtype)
        assert x.dtype == dtype and torch.equal(x.sort().values.cpu(), torch.arange(n, dtype=dtype))


def test_randperm_is_uniform():
    x = torch.stack([torch.randperm(3, device="tpu").cpu() for _ in range(1200)])
    code = x[:, 0] * 2 + (x[:, 1] > x[:, 2])
    assert_probabilities(code, [1] * 6)


# --- coins --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool])
def test_bernoulli(dtype):
    assert_probabilities(empty(dtype).bernoulli_(0.3), [0.7, 0.3])
    assert (empty(dtype).bernoulli_(0) == 0).all() and (empty(dtype).bernoulli_(1) == 1).all()
    p = torch.tensor([0.0, 1.0, 0.25, 0.5], device="tpu").repeat(N // 4)
    x = empty(dtype).bernoulli_(p).cpu()
    assert (x[::4] == 0).all() and (x[1::4] == 1).all()
    assert_probabilities(x[2::4], [0.75, 0.25])
    if dtype.is_floating_point:
        y = torch.bernoulli(p.to(dtype))
        assert y.dtype == dtype
        assert_probabilities(y[3::4], [0.5, 0.5])


def test_geometric():
    for dtype in (torch.float32, torch.int64):
        x = empty(dtype).geometric_(0.3)
        assert x.min() == 1
        limit = 20
        probabilities = [0] + [stats.geom.pmf(k, 0.3) for k in range(1, limit)] + [stats.geom.sf(limit - 1, 0.3)]
        assert_probabilities(x.clamp(max=limit), probabilities)


def test_dropout():
    x = torch.ones(200, 200, device="tpu", requires_grad=True)
    y = F.dropout(x, 0.25)
    assert y.grad_fn.name() == "NativeDropoutBackward0"
    assert_probabilities((y != 0), [0.25, 0.75])
    assert torch.allclose(y[y != 0].cpu(), torch.tensor(1 / 0.75))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad.cpu(), y.detach().cpu())
    assert torch.equal(F.dropout(x, 0.5, training=False), x)
    assert (F.dropout(x, 1.0) == 0).all()
    assert torch.equal(F.dropout(x, 0.0), x)
    for name in ("alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d"):
        assert getattr(F, name)(x[None], 0.5, training=True).shape == (1, 200, 200)
    z = torch.ones(N, device="tpu", dtype=torch.bfloat16)
    out, mask = torch.native_dropout(z, 0.1, True)
    assert out.dtype == torch.bfloat16 and mask.dtype == torch.bool
    assert torch.equal(out.cpu(), (mask / 0.9).to(torch.bfloat16).cpu())


def test_dropout_backward():
    grad, mask = torch.tensor([1, 2, 3]), torch.tensor([True, False, True])
    for g in (grad, grad.float(), grad.bool(), grad.half()):
        expected = torch.ops.aten.native_dropout_backward(g, mask, 2.5)
        torch.testing.assert_close(torch.ops.aten.native_dropout_backward(g.to("tpu"), mask.to("tpu"), 2.5).cpu(), expected)


def test_rrelu():
    x = torch.randn(N, device="tpu", requires_grad=True)
    y = F.rrelu(x, 0.1, 0.3, training=True)
    slope = (y / x).detach()
    assert (slope[x > 0] == 1).all()
    assert_distributed(slope[x < 0], stats.uniform(0.1, 0.2))
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad.cpu(), slope.cpu())
    x = x.detach().cpu().requires_grad_()
    expected = F.rrelu(x)
    device_x = x.detach().to("tpu").requires_grad_()
    actual = F.rrelu(device_x)
    torch.testing.assert_close(actual.cpu(), expected)
    torch.testing.assert_close(torch.autograd.grad(actual.sum(), device_x)[0].cpu(), torch.autograd.grad(expected.sum(), x)[0])


# --- categories ---------------------------------------------------------------------------------------------------------------


def test_multinomial():
    p = torch.tensor([1.0, 0.0, 2.0, 5.0, 0.0], device="tpu")
    assert_probabilities(torch.multinomial(p, N, True), p.tolist())
    assert_probabilities(torch.multinomial(p.expand(N, 5), 1), p.tolist())
    both = torch.multinomial(p.expand(N, 5), 2).cpu()
    assert both.dtype == torch.int64 and (both[:, 0] != both[:, 1]).all()
    assert_probabilities(both[:, 0], p.tolist())
    pairs = [p[i] * p[j] / (8 - p[i]) if i != j else 0.0 for i in range(5) for j in range(5)]
    assert_probabilities(both[:, 0] * 5 + both[:, 1], [float(x) for x in pairs])
    everyone = torch.multinomial(torch.ones(3, 7, device="tpu", dtype=torch.bfloat16), 7).cpu()
    assert torch.equal(everyone.sort(1).values, torch.arange(7).expand(3, 7))
    assert torch.multinomial(torch.ones(0, 4, device="tpu"), 2, True).shape == (0, 2)
    rows = torch.multinomial(torch.eye(4, device="tpu") * 3, 6, True)
    assert torch.equal(rows.cpu(), torch.arange(4)[:, None].expand(4, 6))


@pytest.mark.parametrize("rate", [0.0, 0.3, 4.0, 9.9, 30.0, 1000.0])
def test_poisson(rate):
    x = torch.poisson(torch.full((N,), rate, device="tpu")).cpu()
    low, high = int(stats.poisson.ppf(1e-4, rate)), int(stats.poisson.ppf(1 - 1e-4, rate)) + 1
    if rate == 0:
        assert (x == 0).all()
        return
    probabilities = [stats.poisson.cdf(low, rate)] + [stats.poisson.pmf(k, rate) for k in range(low + 1, high)]
    probabilities.append(stats.poisson.sf(high - 1, rate))
    assert_probabilities(x.clamp(low, high) - low, probabilities)


def test_poisson_large():
    x = torch.poisson(torch.tensor([1e6, 1e9], device="tpu").expand(N, 2)).double().cpu()
    for k, rate in enumerate((1e6, 1e9)):
        assert abs(x[:, k].mean() / rate - 1) < 5 / math.sqrt(rate * N) + 1e-7
        assert abs(x[:, k].std() / math.sqrt(rate) - 1) < 0.05
    assert torch.poisson(torch.ones(4, dtype=torch.bfloat16, device="tpu")).dtype == torch.bfloat16


@pytest.mark.parametrize("n, p", [(7, 0.3), (20, 0.95), (100, 0.4), (5000, 0.7), (100, 0.0), (100, 1.0), (0, 0.5), (1, 0.5)])
def test_binomial(n, p):
    x = torch.binomial(torch.full((N,), float(n), device="tpu"), torch.full((N,), p, device="tpu")).cpu()
    distribution = stats.binom(n, p)
    low, high = max(int(distribution.ppf(1e-4)), 0), max(int(distribution.ppf(1 - 1e-4)), 1)
    if p in (0.0, 1.0) or n == 0:
        assert (x == n * p).all()
        return
    probabilities = [distribution.cdf(low)] + [distribution.pmf(k) for k in range(low + 1, high)] + [distribution.sf(high - 1)]
    assert_probabilities(x.clamp(low, high) - low, probabilities)


def test_binomial_edges():
    x = torch.binomial(torch.tensor([1e7, float("nan"), 3.0], device="tpu"), torch.tensor([[0.3], [0.0]], device="tpu")).cpu()
    assert x.shape == (2, 3) and x[:, 1].isnan().all() and x[1, 0] == 0
    many = torch.binomial(torch.full((N,), 1e7, device="tpu"), torch.full((N,), 0.3, device="tpu")).double().cpu()
    assert abs(many.mean() - 3e6) < 5 * math.sqrt(2.1e6 / N) + 0.5
    assert abs(many.std() / math.sqrt(2.1e6) - 1) < 0.03


@pytest.mark.parametrize("alpha", [0.1, 0.7, 1.0, 2.5, 1000.0])
def test_gamma(alpha):
    x = torch._standard_gamma(torch.full((N,), alpha, device="tpu"))
    assert_distributed(x, stats.gamma(alpha))
    assert (x > 0).all()
    y = torch._standard_gamma(torch.full((N,), alpha, device="tpu", dtype=torch.float64))
    assert_distributed(y, stats.gamma(alpha))


def test_dirichlet():
    alpha = torch.tensor([0.02, 1.0, 3.0], device="tpu")
    x = torch._sample_dirichlet(alpha.expand(N, 3))
    torch.testing.assert_close(x.sum(1).cpu(), torch.ones(N))
    assert ((x > 0) & (x < 1)).all()
    assert_distributed(x[:, 1], stats.beta(1, 3.02))
    assert_distributed(x[:, 2], stats.beta(3, 1.02))
    assert torch._sample_dirichlet(torch.full((4, 3), 1e-3, device="tpu")).isfinite().all()
    assert torch.distributions.Beta(torch.tensor(2.0, device="tpu"), 3.0).sample((N,)).shape == (N,)


# --- errors -------------------------------------------------------------------------------------------------------------------

ERRORS = {
    r"geometric_ expects p to be in \(0, 1\), but got p=1": lambda d: torch.empty(3, device=d).geometric_(1),
    r"bernoulli_ expects p to be in \[0, 1\], but got p=2": lambda d: torch.empty(3, device=d).bernoulli_(2),
    "Expected p_in >= 0 && p_in <= 1 to be true": lambda d: torch.bernoulli(torch.tensor([2.0], device=d)),
    "random_ expects 'from' to be less than 'to', but got from=3 >= to=3": lambda d: torch.empty(3, device=d).random_(3, 3),
    "to - 1 is out of bounds for unsigned char": lambda d: torch.empty(3, device=d, dtype=torch.uint8).random_(0, 300),
    "from is out of bounds for unsigned char": lambda d: torch.empty(3, device=d, dtype=torch.uint8).random_(-1, 3),
    "to - 1 is out of bounds for c10::Half": lambda d: torch.empty(3, device=d, dtype=torch.float16).random_(0, 70000),
    "to - 1 is out of bounds for bool": lambda d: torch.empty(3, device=d, dtype=torch.bool).random_(0, 3),
    "but got from=33554436 >= to=33554434": lambda d: torch.empty(3, device=d).random_(2**25 + 1, 2**25 + 2),
    "Exponential distribution is a continuous probability": lambda d: torch.empty(3, device=d, dtype=torch.long).exponential_(),
    "n cannot be greater than 2049 for Half type": lambda d: torch.randperm(3000, device=d, dtype=torch.float16),
    "cannot sample n_sample > prob_dist.size": lambda d: torch.multinomial(torch.ones(3, device=d), 5),
    "cannot sample n_sample <= 0 samples": lambda d: torch.multinomial(torch.ones(3, device=d), 0),
    "prob_dist must be 1 or 2 dim": lambda d: torch.multinomial(torch.ones(1, 1, 1, device=d), 1),
    "only supports floating-point dtypes for input, got: Int": lambda d: torch.multinomial(torch.ones(3, device=d).int(), 1),
    "probability tensor contains either": lambda d: torch.multinomial(-torch.ones(3, device=d), 1),
    "sum of probabilities <= 0": lambda d: torch.multinomial(torch.zeros(3, device=d), 1),
    "normal expects all elements of std >= 0.0": lambda d: torch.normal(torch.ones(2, device=d), -torch.ones(2, device=d)),
    "invalid Poisson rate, expected rate to be non-negative": lambda d: torch.poisson(-torch.ones(2, device=d)),
}


@pytest.mark.parametrize("match", ERRORS)
def test_errors(match):
    check_error(ERRORS[match], match)


# A fill, and numbers that it takes and refuses.
NUMBERS = {
    "normal_": [(0, 1), (0, -1), (0, -0.5), (0, math.nan)],
    "uniform_": [(0, 1), (1, 0), (0.1, 0.05), (-3e38, 3e38), (0, 1e40), (-1e40, 0), (math.nan, 1), (0, math.inf)],
    "exponential_": [(1,), (0,), (-1.5,), (math.nan,)],
    "cauchy_": [(0, 1), (0, 0), (0, -1.5)],
    "log_normal_": [(0, 1), (0, 0), (0, -1.25)],
    "geometric_": [(0.5,), (0,), (1.5,), (math.nan,)],
    "bernoulli_": [(0.5,), (2,), (-1.5,)],
    "random_": [(0, 5), (5, 3), (3, 3)],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_checked_before_anything_runs(name):
    good, *refused = NUMBERS[name]
    for bad in refused:
        x = torch.full((3,), 7.0, device="tpu")
        getattr(x.clone(), name)(*good)  # so that the plan is there
        with pytest.raises(RuntimeError) as expected:
            getattr(torch.zeros(3), name)(*bad)
        with pytest.raises(RuntimeError) as caught:
            getattr(x, name)(*bad)
        assert str(caught.value) == str(expected.value)
        assert x.tolist() == [7, 7, 7]


def test_a_number_for_std_is_checked_at_once():
    x = torch.zeros(3, device="tpu")
    torch.normal(x, 1.0)
    for bad in (lambda: torch.normal(x, -1.0), lambda: torch.normal(0.0, -1.0, (3,), device="tpu")):
        with pytest.raises(RuntimeError, match=r"^normal expects std >= 0.0, but found std -1$"):
            bad()


@pytest.mark.parametrize(
    "run",
    [
        lambda d: torch.empty(3, device=d, dtype=torch.complex64).random_(),
        lambda d: torch.randperm(2, device=d, dtype=torch.complex64),
        lambda d: torch.randperm(300, device=d, dtype=torch.uint8),
        lambda d: torch.empty(3, device=d, dtype=torch.long).cauchy_(),
        lambda d: torch.empty(3, device=d).bernoulli_(torch.zeros(3, device=d, dtype=torch.long)),
        lambda d: torch.empty(3, device=d, dtype=torch.float16).uniform_(0, 1e5),
        lambda d: torch.empty(3, device=d, dtype=torch.float64).uniform_(-1.7e308, 1.7e308),
        lambda d: torch.binomial(torch.ones(2, device=d).int(), torch.ones(2, device=d)),
        lambda d: torch.binomial(torch.ones(2, device=d), torch.ones(2, device=d).int()),
    ],
)
def test_dtypes_and_ranges(run):
    with pytest.raises(Exception) as expected:
        run("cpu")
    with pytest.raises(type(expected.value)) as caught:
        run("tpu")
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("name", ["uniform_", "normal_", "log_normal_"])
def test_integers_are_refused(name):
    check_error(lambda d: getattr(torch.empty(3, device=d, dtype=torch.long), name)(), "not implemented for 'Long'")

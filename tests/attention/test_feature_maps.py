"""One suite for every feature map in the registry, and what single maps promise beside it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lagformer.attention import (
    FeatureMap,
    feature_map,
    feature_map_names,
    linear_attention,
    reference,
)

NAMES = feature_map_names()
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def draw(*shape: int, seed: int = 0) -> Tensor:
    """float64, and no component within 0.01 of zero, where relu has no derivative."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x + 0.01 * x.sign()


def build(name: str, dim: int) -> FeatureMap:
    """A map in float64; learned weights are moved off their identity."""
    phi = feature_map(name, dim).double()
    with torch.no_grad():
        for p in phi.parameters():
            p += 0.3 * draw(*p.shape, seed=9)
    return phi


def test_the_registry_holds_what_the_library_names() -> None:
    assert set(NAMES) >= {
        *("elu+1", "relu", "squared_relu", "exp"),
        *("taylor2", "taylor2_full", "favor+", "hedgehog"),
    }


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("name", NAMES)
def test_shape_and_declarations(name: str, dim: int) -> None:
    phi = build(name, dim)
    assert phi.name == name
    assert phi.dim == dim
    assert phi.source
    for batch in ((), (0,), (4,), (2, 3, 4)):
        x = draw(*batch, dim)
        assert phi(x).shape == (*batch, phi.num_features)
        assert phi.query(x).shape == (*batch, phi.num_features)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_mapped_one_by_one(name: str) -> None:
    phi, x = build(name, 4), draw(6, 4)
    for f in (phi, phi.query):
        for i in range(6):
            torch.testing.assert_close(f(x)[i], f(x[i]), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_positivity_is_as_declared(name: str) -> None:
    phi = build(name, 3)
    rows = [s * draw(40, 3, seed=s) for s in (1, 3, 10)]
    rows += [torch.full((1, 3), x, dtype=torch.float64) for x in (-100.0, -17.0, 0.0, 17.0, 100.0)]
    x = torch.cat(rows)
    kernel = phi.query(x) @ phi(x).transpose(0, 1)
    if phi.strictly_positive:
        assert (kernel > 0).all()
    else:
        assert (kernel >= 0).all()
        assert (kernel == 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_queries_differ_from_the_map_by_a_positive_factor_a_row(name: str) -> None:
    phi, x = build(name, 4), draw(30, 4)
    ratio = phi.query(x) / phi(x)
    ratio = torch.where(phi(x) == 0, ratio.nan_to_num().amax(-1, keepdim=True), ratio)
    factor = ratio.mean(dim=-1, keepdim=True)
    weighted = phi(x).abs().sum(-1, keepdim=True) > 0
    assert (factor[weighted] > 0).all()
    torch.testing.assert_close(phi.query(x), phi(x) * factor, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_gradient(name: str) -> None:
    phi = build(name, 3)
    x = draw(4, 3).requires_grad_()
    assert torch.autograd.gradcheck(phi, (x,))
    assert torch.autograd.gradgradcheck(phi, (x,))
    for n, p in phi.named_parameters():
        assert torch.autograd.gradcheck(
            lambda w, n=n: torch.func.functional_call(phi, {n: w}, (x.detach(),)), (p,)
        )


@pytest.mark.parametrize("name", [n for n in NAMES if feature_map(n, 2).elementwise])
def test_slope_is_the_derivative(name: str) -> None:
    phi = build(name, 5)
    x = (5 * draw(50, 5)).requires_grad_()
    (derivative,) = torch.autograd.grad(phi(x).sum(), x)
    torch.testing.assert_close(phi.slope(phi(x)), derivative, rtol=1e-15, atol=0)
    zero = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
    (derivative,) = torch.autograd.grad(phi(zero).sum(), zero)
    assert torch.equal(phi.slope(phi(zero)), derivative)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_type_is_kept_and_numbers_are_finite(name: str, dtype: torch.dtype) -> None:
    phi = feature_map(name, 3)
    x = torch.tensor([[0.5, -2, 3], [1e4, -1e4, 3e4], [-6e4, -6e4, -6e4], [0, 0, 0]]).to(dtype)
    for f in (phi, phi.query):
        assert f(x).dtype == dtype
        assert f(x).isfinite().all()
    # Half types are mapped in float32: correct to one rounding of their own.
    if dtype in (torch.float16, torch.bfloat16):
        exact = phi.double()(x[:1].double())
        torch.testing.assert_close(
            phi.float()(x[:1]).double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-7
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_finite_for_large_inputs(name: str, dtype: torch.dtype) -> None:
    phi = feature_map(name, 3)
    x = torch.tensor([[100, -100, 30], [-100, -100, -100]], dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(phi.query(x).sum(), x)
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_saved_state_gives_the_same_numbers(name: str) -> None:
    options = {"generator": torch.Generator().manual_seed(5)} if name == "favor+" else {}
    phi, x = feature_map(name, 4, **options), draw(6, 4).float()
    with torch.no_grad():
        for p in phi.parameters():
            p += 0.3
    expected = phi(x)
    assert torch.equal(phi(x), expected)
    phi.eval()
    assert torch.equal(phi(x), expected)
    fresh = feature_map(name, 4)
    fresh.load_state_dict(phi.state_dict())
    assert torch.equal(fresh(x), expected)


@pytest.mark.parametrize("name", NAMES)
def test_global_random_state_is_left_alone(name: str) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    feature_map(name, 4)
    linear_attention(*(torch.ones(2, 6) for _ in range(3)), feature_map=name)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # inductor's own
def test_compiled_maps_give_the_same_numbers() -> None:
    maps = torch.nn.ModuleList(build(n, 4) for n in NAMES)

    def both(x: Tensor) -> list[Tensor]:
        return [f(x) for phi in maps for f in (phi, phi.query)]

    x = draw(7, 4)
    compiled = torch.compile(both, fullgraph=True)(x)
    for found, expected in zip(compiled, both(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    "spec",
    [("exp", "elu+1"), ("elu+1", "relu"), ("favor+", "favor+"), (torch.sigmoid, "exp")],
)
def test_queries_and_keys_may_be_mapped_differently(
    spec: tuple[str | Callable[[Tensor], Tensor], str],
) -> None:
    q, k, v = draw(6, 3, seed=1), draw(5, 3, seed=2), draw(5, 2, seed=3)
    phi_q, phi_k = (feature_map(s, 3) if isinstance(s, str) else s for s in spec)
    expected = reference.linear_attention(phi_q(q), phi_k(k), v, feature_map=lambda x: x)
    torch.testing.assert_close(
        linear_attention(q, k, v, feature_map=spec), expected, rtol=1e-13, atol=1e-15
    )


@pytest.mark.parametrize("name", ["softmax", "", "ELU+1"])
def test_unknown_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown feature map .*known: elu\+1, ") as error:
        feature_map(name, 4)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="unknown feature map"):
        linear_attention(*(torch.ones(2, 3) for _ in range(3)), feature_map=name)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_widths(name: str) -> None:
    for dim in (0, -1):
        with pytest.raises(ValueError, match=f"dim ≥ 1, got {dim}"):
            feature_map(name, dim)
    with pytest.raises(ValueError, match=r"dim 4, got \(2, 3\)"):
        feature_map(name, 4)(torch.ones(2, 3))


def test_taylor_maps_give_the_truncated_series() -> None:
    for dim in (1, 2, 3, 8, 16):
        q, k = draw(20, dim, seed=1), draw(20, dim, seed=2)
        x = (q * k).sum(dim=-1) / math.sqrt(dim)
        for name, size in (
            ("taylor2", 1 + dim + dim * (dim + 1) // 2),
            ("taylor2_full", 1 + dim + dim**2),
        ):
            phi = feature_map(name, dim)
            assert phi.num_features == size
            kernel = (phi(q) * phi(k)).sum(dim=-1)
            torch.testing.assert_close(kernel, 1 + x + x**2 / 2, rtol=1e-12, atol=0)


def test_elu_plus_one_is_exp_below_zero() -> None:
    x = torch.tensor([[-100.0, -40.0, -17.0, -1e-3]], dtype=torch.float64)
    torch.testing.assert_close(feature_map("elu+1", 4)(x), x.exp(), rtol=1e-15, atol=0)


def test_hedgehog_starts_as_the_identity_and_learns() -> None:
    x = draw(5, 3)
    phi = feature_map("hedgehog", 3)
    expected = torch.cat([x.softmax(-1), (-x).softmax(-1)], dim=-1)
    torch.testing.assert_close(phi(x), expected, rtol=1e-15, atol=0)
    phi(x).square().sum().backward()
    assert phi.weight.grad is not None
    assert phi.weight.grad.abs().sum() > 0


def test_favor_is_drawn_once_from_its_generator() -> None:
    def drawn(seed: int) -> Tensor:
        return feature_map("favor+", 4, generator=torch.Generator().manual_seed(seed)).projection

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert torch.equal(feature_map("favor+", 4).projection, feature_map("favor+", 4).projection)
    assert feature_map("favor+", 4, num_features=10).num_features == 10
    with pytest.raises(ValueError, match="num_features ≥ 1, got 0"):
        feature_map("favor+", 4, num_features=0)


@pytest.mark.parametrize(("dim", "num_features"), [(4, 10), (3, 9), (8, 5)])
def test_favor_rows_are_orthogonal_within_a_block(dim: int, num_features: int) -> None:
    projection = feature_map("favor+", dim, num_features=num_features).projection
    assert projection.shape == (num_features, dim)
    for rows in projection.split(dim):
        rows = rows / rows.norm(dim=1, keepdim=True)
        # unit vectors in float32: an inner product of d terms is off by d·2^-24 at most
        torch.testing.assert_close(
            rows @ rows.T, torch.eye(len(rows)), rtol=0, atol=2 * dim * 2.0**-24
        )


@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_favor_estimates_exp_without_bias(dim: int) -> None:
    """Choromanski et al. 2021, lemma 2: with z = q + k the variance over independent features is
    e^{2qᵀk} (e^{|z|²} - 1) / l, and orthogonal ones have less. Five standard deviations."""
    l = 30_000
    phi = feature_map("favor+", dim, num_features=l)
    q, k = draw(12, dim, seed=1), draw(12, dim, seed=2)
    q, k = (0.6 * x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    exact = (q * k).sum(-1).exp()
    deviation = exact * ((q + k).square().sum(-1).exp() - 1).sqrt() / math.sqrt(l)
    estimate = (phi(q) * phi(k)).sum(-1)
    # float32 rows of the projection add a rounding of 2^-24 |w||z|, here below 1e-6
    assert ((estimate - exact).abs() <= 5 * deviation + 1e-6).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_default_map_has_no_gradient_of_its_own(name: str) -> None:
    q, k, v = (draw(5, 3, seed=s).requires_grad_() for s in (1, 2, 3))
    linear_attention(q, k, v, feature_map=name).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))

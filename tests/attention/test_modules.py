"""The modules: parameters, initial scale, agreement with the oracle, masks, types, saving."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lagformer.attention import (
    LinearAttention,
    RelativeLinearAttention,
    ToeplitzLinearAttention,
    feature_map_names,
    reference,
)

D, T, H, d = 32, 50, 4, 8


def linear(**options: Any) -> LinearAttention:
    return LinearAttention(D, H, d, **options)


def relative(max_lag: int = T - 1, **options: Any) -> RelativeLinearAttention:
    return RelativeLinearAttention(D, H, d, max_lag=max_lag, **options)


def toeplitz(max_lag: int = T - 1, **options: Any) -> ToeplitzLinearAttention:
    return ToeplitzLinearAttention(D, H, d, max_lag=max_lag, **options)


BUILDERS = [linear, relative, toeplitz]
every_module = pytest.mark.parametrize("build", BUILDERS)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def tokens(n: int = T, batch: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, n, D, generator=generator, dtype=torch.float64).to(dtype)


def dense(module: Any, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """The module written down with the oracle, head by head."""
    heads = []
    for h in range(H):
        rows = slice(h * d, (h + 1) * d)
        q, k, v = (x @ p.weight[rows].T for p in (module.q_proj, module.k_proj, module.v_proj))
        options = {"causal": module.causal, "key_mask": key_mask}
        if isinstance(module, RelativeLinearAttention):
            y = reference.relative_linear_attention(q, k, v, module.lags[h], **options)
        elif isinstance(module, ToeplitzLinearAttention):
            weights = module.log_weights[h].exp()
            y = reference.toeplitz_linear_attention(q, k, v, weights, **options)
        else:
            y = reference.linear_attention(q, k, v, **options)
        heads.append(y)
    return torch.cat(heads, dim=-1) @ module.out_proj.weight.T


def test_parameter_counts() -> None:
    assert sum(p.numel() for p in relative().parameters()) == 7264
    for build, table in ((linear, 0), (relative, (2 * T - 1) * H * d), (toeplitz, (2 * T - 1) * H)):
        assert sum(p.numel() for p in build().parameters()) == 4 * D * H * d + table


def test_names_and_shapes_without_biases() -> None:
    projections = {
        **{f"{p}_proj.weight": (H * d, D) for p in "qkv"},
        "out_proj.weight": (D, H * d),
    }
    for build, table in (
        (linear, {}),
        (relative, {"lags": (H, 2 * T - 1, d)}),
        (toeplitz, {"log_weights": (H, 2 * T - 1)}),
    ):
        shapes = {n: tuple(p.shape) for n, p in build().named_parameters()}
        assert shapes == projections | table


def test_head_dim_defaults_to_a_share_of_the_width() -> None:
    assert LinearAttention(12, 3).head_dim == 4
    wide = RelativeLinearAttention(12, 3, 7, max_lag=2)
    assert wide.lags.shape == (3, 5, 7)
    assert wide(torch.randn(2, 4, 12)).shape == (2, 4, 12)


def test_lags_start_as_spread_as_the_keys() -> None:
    """Both variances are 1/3: U(±1/√D) weights times unit-variance input, and N(0, 1/3) lags.

    A sample variance of n independent normals has relative deviation √(2/n): five of them.
    """
    module = RelativeLinearAttention(D, H, d, max_lag=1000)
    n = module.lags.numel()
    assert abs(float(module.lags.detach().var()) * 3 - 1) <= 5 * math.sqrt(2 / n)
    assert abs(float(module.lags.detach().mean())) <= 5 * math.sqrt(1 / 3 / n)
    with torch.no_grad():
        variance = float(module.k_proj(tokens(20_000, dtype=torch.float32)).var())
    # D·H·d uniform weights: each square has relative deviation √(4/5)
    assert abs(variance * 3 - 1) <= 5 * math.sqrt(0.8 / (D * H * d)) + 0.01


@every_module
@pytest.mark.parametrize("causal", [False, True])
def test_agreement_with_the_oracle(build: Callable[..., Any], causal: bool) -> None:
    module = build(causal=causal).double()
    if build is toeplitz:
        nn.init.normal_(module.log_weights)
    x = tokens()
    masks = (None, torch.arange(T) % 4 != 1, torch.arange(T).expand(3, T) > 6)
    for mask in masks:
        found, expected = module(x, mask), dense(module, x, mask)
        # 1e-15: the outputs are of the order of 0.1
        assert float((found - expected).detach().abs().max()) <= 1e-15
        cotangent = torch.randn_like(expected)
        leaves = list(module.parameters())
        for f, e in zip(
            torch.autograd.grad(found, leaves, cotangent),
            torch.autograd.grad(expected, leaves, cotangent),
            strict=True,
        ):
            assert float((f - e).abs().max()) <= 1e-12 * float(e.abs().max())


@every_module
def test_shorter_and_longer_series_than_the_table(build: Callable[..., Any]) -> None:
    module = build().double() if build is linear else build(max_lag=9).double()
    for n in (1, 2, 9, 10, 11, 60):
        x = tokens(n)
        torch.testing.assert_close(module(x), dense(module, x), rtol=1e-12, atol=1e-14)
    assert module(tokens(0)).shape == (3, 0, D)
    assert module(tokens(5, 0)).shape == (0, 5, D)


@every_module
def test_padded_tokens_change_nothing(build: Callable[..., Any]) -> None:
    module, x = build().double(), tokens(20)
    for left in (0, 7):
        mask = torch.zeros(3, 27, dtype=torch.bool)
        mask[:, left : left + 20] = True
        wide = torch.full((3, 27, D), 5.0, dtype=torch.float64)
        wide[:, left : left + 20] = x
        gradients = []
        for y in (module(wide, mask)[:, left : left + 20], module(x)):
            gradients.append([y, *torch.autograd.grad(y.square().sum(), module.parameters())])
        for f, e in zip(*gradients, strict=True):
            assert float((f - e).detach().abs().max()) <= 1e-12 * float(e.detach().abs().max())


@every_module
def test_leading_dimensions_are_free(build: Callable[..., Any]) -> None:
    module, x = build().double(), tokens(7, 6)
    whole = module(x)
    torch.testing.assert_close(module(x[0]), whole[0], rtol=1e-12, atol=1e-14)
    y = module(x.view(2, 3, 7, D), torch.ones(2, 3, 7, dtype=torch.bool))
    torch.testing.assert_close(y.view(6, 7, D), whole, rtol=1e-12, atol=1e-14)


@every_module
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_types(build: Callable[..., Any], causal: bool, dtype: torch.dtype) -> None:
    module = build(causal=causal).to(dtype)
    x = tokens(dtype=dtype)
    y = module(x, torch.arange(T) > 3)
    assert y.dtype == dtype
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    exact = copy.deepcopy(module).double()(x.double(), torch.arange(T) > 3).detach()
    # one rounding to the type in each of the projections, one of the average: five, of terms of
    # the outputs' size
    bound = 5 * torch.finfo(dtype).eps * float(exact.abs().max())
    assert float((y.detach().double() - exact).abs().max()) <= bound


@every_module
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_autocast(build: Callable[..., Any], causal: bool, masked: bool) -> None:
    """Mixed precision as torch trains with it: bfloat16 projections, float32 parameters."""
    module, x = build(causal=causal), tokens(dtype=torch.float32)
    mask = torch.arange(T) > 3 if masked else None
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x, mask)
    y.float().square().sum().backward()
    exact = module(x, mask).detach()
    bound = 5 * torch.finfo(torch.bfloat16).eps * float(exact.abs().max())
    assert float((y.detach().float() - exact).abs().max()) <= bound
    for p in module.parameters():
        assert p.grad is not None
        assert p.grad.dtype == torch.float32
        assert p.grad.isfinite().all()


@every_module
@pytest.mark.parametrize("name", feature_map_names())
def test_copies_and_saved_modules_give_the_same_bits(build: Callable[..., Any], name: str) -> None:
    module, x = build(feature_map=name), tokens(dtype=torch.float32)
    expected = module(x).detach()
    assert torch.equal(copy.deepcopy(module)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), expected)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    torch.manual_seed(99)
    other = build(feature_map=name)
    assert not torch.equal(other(x), expected)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(x), expected)
    assert torch.equal(other.eval()(x), expected)


@every_module
def test_it_learns(build: Callable[..., Any]) -> None:
    module, x = build(), tokens(12, dtype=torch.float32)
    target = x.roll(1, 1)
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = (module(x) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@every_module
@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((0, 1, 1), "embed_dim 0"),
        ((4, 0, 1), "num_heads 0"),
        ((4, -2, 1), "num_heads -2"),
        ((4, 2, 0), "head_dim 0"),
        ((5, 2, None), "5 is not a multiple of num_heads 2"),
    ],
)
def test_bad_sizes(build: Callable[..., Any], sizes: tuple[int, int, int], said: str) -> None:
    options = {} if build is linear else {"max_lag": 3}
    with pytest.raises(ValueError, match=said) as error:
        type(build())(*sizes, **options)
    assert "\n" not in str(error.value)


def test_bad_lags_and_maps() -> None:
    for build in (relative, toeplitz):
        with pytest.raises(ValueError, match="max_lag must be ≥ 0, got -1"):
            build(max_lag=-1)
    for build in BUILDERS:
        with pytest.raises(ValueError, match="unknown feature map 'softmax'"):
            build(feature_map="softmax")


@every_module
def test_bad_tokens_and_masks(build: Callable[..., Any]) -> None:
    module = build()
    for shape in ((3, 7, D + 1), (D,), (3, D, 7)):
        with pytest.raises(ValueError, match=rf"tokens are .*{D}\), got \({shape[0]},"):
            module(torch.zeros(shape))
    with pytest.raises(ValueError, match="boolean"):
        module(torch.zeros(3, 7, D), torch.ones(3, 7))
    with pytest.raises(ValueError, match=r"key_mask .*8"):
        module(torch.zeros(3, 7, D), torch.ones(3, 8, dtype=torch.bool))
    with pytest.raises(ValueError, match="broadcast"):
        module(torch.zeros(3, 7, D), torch.ones(2, 7, dtype=torch.bool))

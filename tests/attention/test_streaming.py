"""Causal modules in steps: any split equals the whole, and the state does not grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lagformer.attention import (
    LinearAttention,
    RelativeLinearAttention,
    ToeplitzLinearAttention,
    feature_map_names,
)

T = 13
Build = Callable[..., Any]


def linear(**options: Any) -> LinearAttention:
    return LinearAttention(6, 2, 3, causal=True, **options)


def relative(max_lag: int = 4, **options: Any) -> RelativeLinearAttention:
    return RelativeLinearAttention(6, 2, 3, max_lag=max_lag, causal=True, **options)


def toeplitz(max_lag: int = 4, **options: Any) -> ToeplitzLinearAttention:
    return ToeplitzLinearAttention(6, 2, 3, max_lag=max_lag, causal=True, **options)


every_module = pytest.mark.parametrize("build", [linear, relative, toeplitz])


def made(build: Build, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    torch.manual_seed(0)
    module = build(**options)
    with torch.no_grad():  # Toeplitz weights start equal
        for p in module.parameters():
            p += 0.3 * torch.randn_like(p)
    return module.to(dtype)


def tokens(n: int = T, batch: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, n, 6, generator=generator, dtype=torch.float64).to(dtype)


def stream(module: Any, x: Tensor, cuts: Iterable[int]) -> tuple[Tensor, Any]:
    state, outputs = module.initial_state(x.shape[0]), []
    for start, stop in pairwise([0, *sorted(cuts), x.shape[1]]):
        if start < stop:
            y, state = module.step(x[:, start:stop], state)
            assert y.shape == (x.shape[0], stop - start, 6)
            outputs.append(y)
    return torch.cat(outputs, dim=1), state


@every_module
@settings(max_examples=25)
@given(cuts=st.sets(st.integers(1, T - 1)), max_lag=st.integers(0, 20))
@example(cuts=set(range(1, T)), max_lag=T - 1)
@example(cuts=set(), max_lag=0)
@example(cuts={1, 12}, max_lag=3)
def test_any_split_equals_the_whole(build: Build, cuts: set[int], max_lag: int) -> None:
    module = made(build) if build is linear else made(build, max_lag=max_lag)
    x = tokens()
    found, _ = stream(module, x, cuts)
    torch.testing.assert_close(found, module(x), rtol=1e-12, atol=1e-13)


@every_module
@pytest.mark.parametrize("name", feature_map_names())
def test_every_feature_map_streams(build: Build, name: str) -> None:
    module, x = made(build, feature_map=name), tokens()
    torch.testing.assert_close(stream(module, x, {1, 2, 7})[0], module(x), rtol=1e-11, atol=1e-12)


@every_module
def test_gradients_flow_through_the_steps(build: Build) -> None:
    x = tokens()
    gradients = []
    for cuts in (None, {3, 4, 9}):
        module = made(build)
        leaf = x.clone().requires_grad_()
        y = module(leaf) if cuts is None else stream(module, leaf, cuts)[0]
        y.square().sum().backward()
        gradients.append([leaf.grad, *(p.grad for p in module.parameters())])
    for whole, split in zip(*gradients, strict=True):
        torch.testing.assert_close(split, whole, rtol=1e-11, atol=1e-12)


@every_module
def test_the_state_does_not_grow(build: Build) -> None:
    module = made(build)
    state = module.initial_state(2)
    sizes = [t.shape for t in state]
    for x in tokens(40).split([1, 1, 20, 5, 13], dim=1):
        _, state = module.step(x, state)
        assert [t.shape for t in state] == sizes
        # no view that keeps a long past alive
        assert all(t.untyped_storage().nbytes() <= 2 * 2 * 13 * 8 * 24 for t in state)


@every_module
def test_a_state_is_not_changed_by_a_step(build: Build) -> None:
    """Two continuations from one state, the first not seen by the second."""
    module, x = made(build), tokens()
    _, state = module.step(x[:, :6], module.initial_state(2))
    kept = [t.clone() for t in state]
    with torch.no_grad():
        first, _ = module.step(x[:, 6:], state)
        module.step(-x[:, 6:], state)
        again, _ = module.step(x[:, 6:], state)
    assert torch.equal(first, again)
    assert all(torch.equal(a, b) for a, b in zip(state, kept, strict=True))


@every_module
def test_a_state_carries_the_sum_of_keys(build: Build) -> None:
    """Constant values: the average is constant only if the normaliser is resumed too."""
    module = made(build)
    with torch.no_grad():
        module.v_proj.weight[:] = 0
        module.v_proj.weight[:, 0] = 1
    x = tokens()
    x[..., 0] = 2.5
    y, _ = stream(module, x, {1, 5, 6})
    torch.testing.assert_close(y, y[:, :1].expand_as(y), rtol=1e-12, atol=1e-12)


@every_module
@pytest.mark.parametrize("fill", [torch.nan, torch.inf])
def test_nan_in_a_step_reaches_no_earlier_token(build: Build, fill: float) -> None:
    module, x = made(build), tokens()
    expected = module(x)
    x[:, 8:] = fill
    y, _ = stream(module, x, {3})
    torch.testing.assert_close(y[:, :8], expected[:, :8], rtol=1e-12, atol=1e-13)


@every_module
def test_nan_in_a_step_is_seen_by_all_later_tokens(build: Build) -> None:
    module, x = made(build), tokens(40)
    x[:, 8] = torch.nan
    y, _ = stream(module, x, {9, 20, 21})
    assert y[:, 8:].isnan().any(dim=-1).all()


@every_module
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_types(build: Build, dtype: torch.dtype) -> None:
    module, x = made(build, dtype), tokens(dtype=dtype)
    y, state = stream(module, x, {2, 3})
    assert y.dtype == dtype
    wide = torch.float32 if dtype != torch.float64 else dtype
    assert all(t.dtype == wide for t in state)
    # both round to their type once in each of four projections and once in between
    whole = module(x).detach()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y, whole, rtol=0, atol=8 * eps * float(whole.abs().max()))


@every_module
def test_autocast_streams_as_the_whole(build: Build) -> None:
    module, x = made(build, torch.float32), tokens(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        whole = module(x)
        split, state = stream(module, x, {2, 3})
    assert split.dtype == whole.dtype
    assert all(t.dtype == torch.float32 for t in state)
    eps = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(split, whole, rtol=0, atol=4 * eps * float(whole.abs().max()))


@every_module
def test_a_fresh_state_knows_nothing_of_the_series_before(build: Build) -> None:
    module, x = made(build), tokens()
    stream(module, 100 * x, {4})
    torch.testing.assert_close(stream(module, x, {4})[0], module(x), rtol=1e-12, atol=1e-13)


@every_module
def test_errors(build: Build) -> None:
    module = made(build)
    state = module.initial_state(2)
    for x, said in (
        (torch.zeros(2, 0, 6), r"n ≥ 1.*\(2, 0, 6\)"),
        (torch.zeros(3, 1, 6), r"B = 2, got \(3, 1, 6\)"),
        (torch.zeros(2, 6), r"got \(2, 6\)"),
        (torch.zeros(2, 1, 5), r"6\), got \(2, 1, 5\)"),
    ):
        with pytest.raises(ValueError, match=said) as error:
            module.step(x.double(), state)
        assert "\n" not in str(error.value)
    for batch_size in (0, -1):
        with pytest.raises(ValueError, match=f"batch_size must be ≥ 1, got {batch_size}"):
            module.initial_state(batch_size)


@pytest.mark.parametrize(
    "module",
    [
        LinearAttention(6, 2),
        RelativeLinearAttention(6, 2, max_lag=2),
        ToeplitzLinearAttention(6, 2, max_lag=2),
    ],
)
def test_only_causal_modules_stream(module: nn.Module) -> None:
    with pytest.raises(ValueError, match="causal=True"):
        module.initial_state(2)

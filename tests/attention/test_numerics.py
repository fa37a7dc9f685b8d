"""Rounding, range and autocast: what half precision and large numbers may cost, and what not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lagformer.attention import (
    linear_attention,
    reference,
    relative_linear_attention,
    toeplitz_linear_attention,
)

Ops = dict[str, tuple[Any, Any]]
Make = Callable[..., list[Tensor]]
Results = Callable[..., list[Tensor]]
Agree = Callable[..., None]

HALF = [torch.float16, torch.bfloat16]
CASES = [
    *(("linear", {"causal": causal}) for causal in (False, True)),
    *(
        (op, {"method": method, "causal": causal})
        for op in ("relative", "toeplitz")
        for method in ("dense", "block", "fft", "band")
        for causal in (False, True)
    ),
]
every_case = pytest.mark.parametrize(
    ("op", "options"), CASES, ids=["-".join([op, *map(str, o.values())]) for op, o in CASES]
)


def plain(options: dict[str, Any]) -> dict[str, Any]:
    return {n: o for n, o in options.items() if n != "method"}


@every_case
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision_errs_at_most_twice_as_much_as_the_dense_formula_in_it(
    op: str,
    options: dict[str, Any],
    dtype: torch.dtype,
    masked: bool,
    ops: Ops,
    make: Make,
) -> None:
    fast, dense = ops[op]
    half = make(op, 90, d=8, c=4, R=20, batch=(9, 2), dtype=dtype)
    mask = torch.arange(90) % 5 != 2 if masked else None
    exact = dense(*(x.double() for x in half), key_mask=mask, **plain(options))
    torchs_own = dense(*half, key_mask=mask, **plain(options))
    found = fast(*half, key_mask=mask, **options)
    assert found.dtype == dtype

    def error(out: Tensor) -> Tensor:
        return (out.double() - exact).abs()

    assert error(found).max() <= 2 * error(torchs_own).max()
    assert error(found).mean() <= 2 * error(torchs_own).mean()


@every_case
@pytest.mark.parametrize("dtype", HALF)
def test_gradients_in_half_precision(
    op: str, options: dict[str, Any], dtype: torch.dtype, ops: Ops, make: Make
) -> None:
    fast, dense = ops[op]
    half = make(op, 90, d=8, c=4, R=20, batch=(9, 2), dtype=dtype)
    cotangent = make("linear", 90, d=4, batch=(9, 2), dtype=dtype, seed=5)[2]

    def gradients(attend: Callable[..., Tensor], dtype: torch.dtype, **o: Any) -> list[Tensor]:
        leaves = [x.detach().to(dtype).requires_grad_() for x in half]
        out = attend(*leaves, **o)
        return list(torch.autograd.grad(out, leaves, cotangent.to(dtype)))

    exact = gradients(dense, torch.float64, **plain(options))
    torchs_own = gradients(dense, dtype, **plain(options))
    found = gradients(fast, dtype, **options)
    for f, t, e in zip(found, torchs_own, exact, strict=True):
        assert f.dtype == dtype
        assert (f.double() - e).abs().max() <= 2 * (t.double() - e).abs().max()


@every_case
def test_float32_errs_at_most_as_much_as_a_sum_of_that_many_terms(
    op: str, options: dict[str, Any], ops: Ops, make: Make
) -> None:
    fast, dense = ops[op]
    inputs = make(op, 90, d=8, c=4, R=20, dtype=torch.float32)
    exact = dense(*(x.double() for x in inputs), **plain(options))
    # Numerator and denominator: 90·8 products each, roundings of 2^-24 that add up as a random
    # walk; the average is of values below 5.
    bound = 5 * 2 * (90 * 8) ** 0.5 * 2.0**-24
    assert (fast(*inputs, **options).double() - exact).abs().max() <= bound


N = 100_000


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("op", ["linear", "relative", "toeplitz"])
def test_a_hundred_thousand_positive_keys(op: str, dtype: torch.dtype, ops: Ops) -> None:
    """Weights sum to about 4·10^5, beyond float16: finite, and right to one rounding."""
    fast, dense = ops[op]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(n, 2, generator=generator).to(dtype) for n in (8, N, N))
    table = {"relative": [torch.rand(9, 2, generator=generator).to(dtype)]}
    table["toeplitz"] = [torch.rand(9, generator=generator).to(dtype)]
    inputs = [q, k, v, *table.get(op, [])]
    exact = dense(*(x.double() for x in inputs))
    for method in ("block", "band", "fft") if op != "linear" else (None,):
        found = fast(*inputs, **({} if method is None else {"method": method}))
        # half a unit of the last place for the cast; float32 sums are far more exact
        assert ((found.double() - exact).abs() <= torch.finfo(dtype).eps * exact).all()


@pytest.mark.parametrize("dtype", HALF)
def test_a_hundred_thousand_causal_keys(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(N, 2, generator=generator).to(dtype) for _ in range(3))
    lags = torch.rand(9, 2, generator=generator).to(dtype)
    weights = torch.rand(9, generator=generator).to(dtype)
    wide = [x[-4:].double() if x is q else x.double() for x in (q, k, v)]
    last = torch.arange(N) < N - 3  # what query N - 4 sees
    for fast, dense, table in (
        (linear_attention, reference.linear_attention, []),
        (relative_linear_attention, reference.relative_linear_attention, [lags]),
        (toeplitz_linear_attention, reference.toeplitz_linear_attention, [weights]),
    ):
        found = fast(q, k, v, *table, causal=True)
        assert found.isfinite().all()
        # The dense definition of one late query: keys turned so that its lags are where they were
        if not table:
            exact = dense(wide[0][:1], *wide[1:], key_mask=last)[0]
            assert ((found[-4].double() - exact).abs() <= torch.finfo(dtype).eps * exact).all()
        else:
            # that query alone sees nothing at lags > 0, and all keys but 4 share lag -4
            near, far = slice(N - 7, N - 3), slice(0, N - 7)
            phi_q, phi_k = (reference.elu_plus_one(x) for x in (wide[0][0], wide[1]))
            content = phi_k @ phi_q
            if table[0] is lags:
                r = reference.elu_plus_one(lags.double()) @ phi_q
                weight = torch.cat([content[far] + r[0], content[near] + r[1:5]])
            else:
                w = weights.double()
                weight = torch.cat([content[far] * w[0], content[near] * w[1:5]])
            exact = weight @ wide[2][: N - 3] / weight.sum()
            assert ((found[-4].double() - exact).abs() <= torch.finfo(dtype).eps * exact).all()


@every_case
@pytest.mark.parametrize("size", [1e4, -1e4, 6e4, -6e4])
@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_large_inputs_stay_finite(
    op: str,
    options: dict[str, Any],
    size: float,
    dtype: torch.dtype,
    ops: Ops,
    make: Make,
    results: Results,
) -> None:
    fast, _ = ops[op]
    for name in ("elu+1", "exp", "favor+", "hedgehog"):
        q, k, v, *table = make(op, 9, R=3, dtype=dtype)
        k[..., ::2, :], q[..., 1::3, :] = size, size
        found = results(fast, [q, k, v, *table], feature_map=name, **options)
        assert all(x.isfinite().all() for x in found), name
        # an average lies between the least and the largest value
        assert found[0].abs().max() <= v.abs().max() * (1 + 16 * torch.finfo(dtype).eps), name


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_autocast_changes_nothing(
    op: str, options: dict[str, Any], dtype: torch.dtype, masked: bool, ops: Ops, make: Make
) -> None:
    fast, _ = ops[op]
    leaves = [x.requires_grad_() for x in make(op, 40, d=4, R=9, batch=(9, 2), dtype=dtype)]
    mask = torch.arange(40) > 3 if masked else None

    out = fast(*leaves, key_mask=mask, **options)
    gradients = torch.autograd.grad(out.square().sum(), leaves, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        cast = fast(*leaves, key_mask=mask, **options)
    assert cast.dtype == dtype
    assert torch.equal(cast, out)
    for f, e in zip(torch.autograd.grad(cast.square().sum(), leaves), gradients, strict=True):
        assert torch.equal(f, e)
    # PyTorch advises against a backward pass inside the context, where its own products are
    # rounded to bfloat16; it works all the same.
    with torch.autocast("cpu", torch.bfloat16):
        cast = fast(*leaves, key_mask=mask, **options)
        inside = torch.autograd.grad(cast.square().sum(), leaves)
    for f, e in zip(inside, gradients, strict=True):
        assert f.dtype == dtype
        assert (f - e).abs().max() <= 2.0**-4 * e.abs().max()


@every_case
@pytest.mark.parametrize("fill", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["elu+1", "relu", "exp", "taylor2", "favor+", "hedgehog"])
def test_what_is_masked_does_not_leak(
    op: str,
    options: dict[str, Any],
    fill: float,
    name: str,
    ops: Ops,
    make: Make,
    results: Results,
) -> None:
    fast, _ = ops[op]
    q, k, v, *table = make(op, 9, R=3)
    mask = torch.tensor([True, True, False, True, False, False, True, True, False])
    k[..., ~mask, :], v[..., ~mask, :] = 0.0, 0.0
    options = {"key_mask": mask, "feature_map": name, **options}
    expected = results(fast, [q, k, v, *table], **options)
    k[..., ~mask, :], v[..., ~mask, :] = fill, fill
    for f, e in zip(results(fast, [q, k, v, *table], **options), expected, strict=True):
        assert torch.equal(f, e)


@every_case
def test_rows_without_a_key_are_zeros_with_zero_gradients(
    op: str, options: dict[str, Any], ops: Ops, make: Make, results: Results
) -> None:
    fast, _ = ops[op]
    mask = torch.ones(2, 1, 9, dtype=torch.bool)
    mask[1] = False
    for dtype in (torch.float64, torch.float16):
        found = results(fast, make(op, 9, R=3, dtype=dtype), key_mask=mask, **options)
        assert all(x.isfinite().all() for x in found)
        assert found[0][0].any()
        assert not any(x[1].any() for x in found[:4])
        if options["causal"]:
            # the first real key comes late: rows before it have none
            late = torch.arange(9) >= 4
            found = results(fast, make(op, 9, R=3, dtype=dtype), key_mask=late, **options)
            assert all(x.isfinite().all() for x in found)
            assert not found[0][..., :4, :].any()
            assert not found[1][..., :4, :].any()

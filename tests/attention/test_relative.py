"""Attention with a table of lags, by every method, beside the dense definitions.

Relative attention (a vector a lag) and Toeplitz attention (a weight a lag) follow the same rules
for shapes, clamping, masks and methods: one suite serves both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lagformer.attention import feature_map

Ops = dict[str, tuple[Any, Any]]
Make = Callable[..., list[Tensor]]
Results = Callable[..., list[Tensor]]
Agree = Callable[..., None]

METHODS = ["dense", "block", "fft", "band", "auto"]
both_ops = pytest.mark.parametrize("op", ["relative", "toeplitz"])
every_method = pytest.mark.parametrize("method", METHODS)
both_ways = pytest.mark.parametrize("causal", [False, True])


@both_ops
@every_method
@both_ways
@pytest.mark.parametrize("d", [8, 16])
def test_to_the_last_digit_at_fifty_tokens(
    op: str,
    method: str,
    causal: bool,
    d: int,
    ops: Ops,
    make: Make,
    results: Results,
) -> None:
    fast, dense = ops[op]
    inputs = make(op, 50, d=d, batch=(9, 4))
    found = results(fast, inputs, causal=causal, method=method)
    expected = results(dense, inputs, causal=causal)
    # averages of values of order 1
    assert float((found[0] - expected[0]).abs().max()) <= 1e-15
    # a gradient is the difference of two such sums, each rounded in both paths
    for gradient, exact in zip(found[1:], expected[1:], strict=True):
        assert float((gradient - exact).abs().max()) <= 2e-15 * max(1, float(exact.abs().max()))


# R = 0, short, one too short, the full table, one longer; T prime; S on both sides of T
SHAPES = [
    *((T, T, R) for T in (2, 31, 67) for R in (0, 1, T // 2, T - 2, T - 1, T + 4)),
    *((31, 67, R) for R in (0, 1, 12, 30, 50, 66, 80)),
    *((67, 31, R) for R in (0, 1, 12, 30, 50, 66, 80)),
    *((1, 9, R) for R in (0, 3, 8)),
    *((9, 1, R) for R in (0, 3, 8)),
    *((1, 1, R) for R in (0, 2)),
]


@both_ops
@every_method
@pytest.mark.parametrize(("T", "S", "R"), SHAPES)
def test_lengths_and_reaches(
    op: str,
    method: str,
    T: int,
    S: int,
    R: int,
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    fast, dense = ops[op]
    inputs = make(op, T, S, d=4, c=2, R=R)
    # One key: the gradients by q, k and lags are 0; one weight for all lags: it cancels, and so is
    # its own. Their terms are of the order of one.
    floor = 1.0 if S == 1 or (op == "toeplitz" and R == 0) else 0.0
    for causal in (False, True) if T == S else (False,):
        agree(
            results(fast, inputs, causal=causal, method=method),
            results(dense, inputs, causal=causal),
            floor=floor,
        )


@both_ops
@every_method
@pytest.mark.parametrize(("T", "S"), [(0, 0), (0, 4), (4, 0)])
@pytest.mark.parametrize("R", [0, 3])
def test_nothing_to_attend_to_gives_zeros(
    op: str,
    method: str,
    T: int,
    S: int,
    R: int,
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    fast, dense = ops[op]
    inputs = make(op, T, S, c=2, R=R)
    for causal in (False, True) if T == S else (False,):
        for mask in (None, torch.ones(S, dtype=torch.bool)):
            found = results(fast, inputs, causal=causal, method=method, key_mask=mask)
            agree(found, results(dense, inputs, causal=causal, key_mask=mask))
            assert not any(x.any() for x in found)


def masks(S: int) -> dict[str, Tensor]:
    place = torch.arange(S)
    random = torch.rand(2, 1, S, generator=torch.Generator().manual_seed(2)) > 0.4
    one_row = torch.ones(2, 1, S, dtype=torch.bool)
    one_row[0] = False
    return {
        "left": place >= S // 3,
        "right": place < S - S // 3,
        "random": random,
        "one row": one_row,
        "all but one": place == S // 2,
    }


@both_ops
@every_method
@both_ways
@pytest.mark.parametrize("kind", list(masks(3)))
@pytest.mark.parametrize("R", [2, 18])
def test_masks(
    op: str,
    method: str,
    causal: bool,
    kind: str,
    R: int,
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    fast, dense = ops[op]
    inputs, key_mask = make(op, 19, c=2, R=R), masks(19)[kind]
    found = results(fast, inputs, causal=causal, method=method, key_mask=key_mask)
    expected = results(dense, inputs, causal=causal, key_mask=key_mask)
    agree(found, expected, floor=1.0 if kind == "all but one" else 0.0)
    if kind == "one row":
        assert not any(x[0].any() for x in found[:4])


# (leading dimensions of q, of k and v, of the table)
BATCHES: list[tuple[tuple[int, ...], ...]] = [
    ((), (), ()),
    ((3,), (3,), ()),
    ((3,), (3,), (3,)),
    ((2, 3), (2, 3), (3,)),
    ((2, 3), (2, 3), (2, 1)),
    ((2, 3), (2, 3), (2, 3)),
    ((4, 3), (4, 1), (3,)),
    ((4, 3), (1, 3), (4, 3)),
    ((2, 2, 3), (2, 2, 3), (2, 1, 3)),
    ((2, 2, 3), (3,), (2, 1)),
]


@both_ops
@every_method
@both_ways
@pytest.mark.parametrize(("batch", "kv_batch", "lag_batch"), BATCHES)
def test_leading_dimensions(
    op: str,
    method: str,
    causal: bool,
    batch: tuple[int, ...],
    kv_batch: tuple[int, ...],
    lag_batch: tuple[int, ...],
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    fast, dense = ops[op]
    inputs = make(op, 7, c=2, R=4, batch=batch, kv_batch=kv_batch, lag_batch=lag_batch)
    for mask in (None, torch.arange(7) > 1):
        options = {"causal": causal, "key_mask": mask}
        agree(results(fast, inputs, method=method, **options), results(dense, inputs, **options))


@both_ops
def test_no_rows_at_all(op: str, ops: Ops, make: Make, results: Results) -> None:
    for method in METHODS:
        for causal in (False, True):
            inputs = make(op, 5, batch=(0, 3))
            found = results(ops[op][0], inputs, causal=causal, method=method)
            assert found[0].shape == (0, 3, 5, 3)
            assert not found[-1].any()


@both_ops
@every_method
@both_ways
@pytest.mark.parametrize("name", ["relu", "squared_relu", "exp", "taylor2", "taylor2_full"])
def test_other_feature_maps(
    op: str,
    method: str,
    causal: bool,
    name: str,
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    fast, dense = ops[op]
    inputs = make(op, 13, d=3, c=2, R=5)
    inputs[0][:, :, 2] = -1.0  # without weight under relu
    options = {"causal": causal, "feature_map": name}
    found = results(fast, inputs, method=method, **options)
    agree(found, results(dense, inputs, **options))
    if "relu" in name:
        assert not found[0][:, :, 2].any()
        assert not found[1][:, :, 2].any()


@every_method
@both_ways
@pytest.mark.parametrize("masked", [False, True])
def test_rows_whose_lags_have_no_weight_give_zeros(
    method: str, causal: bool, masked: bool, ops: Ops, make: Make, results: Results, agree: Agree
) -> None:
    """An FFT's sum of nothing is a rounding error, and one over another is any number."""
    fast, dense = ops["relative"]
    q, k, v, lags = make("relative", 19, c=2)
    lags = -lags.abs()
    for lag in (-13, 9):  # only these two carry weight; rows 10 to 12 have neither
        lags[:, 18 + lag] = -lags[:, 18 + lag]
    inputs = [q.abs(), -k.abs(), v, lags]
    mask = torch.arange(19) % 4 != 1 if masked else None
    options = {"feature_map": "relu", "causal": causal, "key_mask": mask}
    expected = results(dense, inputs, **options)
    assert not expected[0][:, :, 10:13].any()
    # With one key of weight, gradients are 0 whose terms are of the order of one.
    agree(results(fast, inputs, method=method, **options), expected, floor=1.0)


@both_ops
@every_method
def test_random_and_learned_feature_maps(
    op: str, method: str, ops: Ops, make: Make, results: Results, agree: Agree
) -> None:
    """favor+ and hedgehog have no closed form in the oracle: it is handed the function."""
    fast, dense = ops[op]
    for name in ("favor+", "hedgehog"):
        phi = feature_map(name, 4).double()
        inputs = make(op, 13, d=4, c=2, R=5)
        agree(
            results(fast, inputs, method=method, feature_map=phi),
            results(dense, inputs, feature_map=phi),
        )


# Beyond one block of queries, one level of halving, one causal segment; no multiple of any of them
@both_ops
@pytest.mark.parametrize("method", ["block", "fft", "band", "auto"])
@both_ways
@pytest.mark.parametrize(("T", "R"), [(601, 600), (601, 40), (1037, 1036), (1037, 3)])
def test_many_blocks_and_levels(
    op: str,
    method: str,
    causal: bool,
    T: int,
    R: int,
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    fast, dense = ops[op]
    inputs = make(op, T, d=2, c=3, R=R, batch=(2,))
    mask = torch.arange(T) % 7 != 3
    for key_mask in (None, mask) if T == 601 else (mask,):
        options = {"causal": causal, "key_mask": key_mask}
        agree(results(fast, inputs, method=method, **options), results(dense, inputs, **options))


# A batch is what makes the fused step worth while: many rows that share a table
@both_ops
@pytest.mark.parametrize("method", ["block", "fft", "auto"])
@pytest.mark.parametrize("name", ["elu+1", "relu", "taylor2"])
@pytest.mark.parametrize(
    ("T", "S", "R"),
    [(50, 50, 49), (31, 31, 9), (67, 40, 20), (40, 67, 80), (1, 9, 3), (2, 1, 3), (131, 131, 130)],
)
def test_many_rows(
    op: str,
    method: str,
    name: str,
    T: int,
    S: int,
    R: int,
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    fast, dense = ops[op]
    inputs = make(op, T, S, d=3, c=2, R=R, batch=(11, 2))
    found = results(fast, inputs, method=method, feature_map=name)
    agree(found, results(dense, inputs, feature_map=name), floor=1.0 if S == 1 else 0.0)
    with torch.no_grad():
        agree([fast(*inputs, method=method, feature_map=name)], found[:1], 1e-14)


@both_ops
def test_many_rows_are_worked_on_in_pieces(
    op: str, ops: Ops, make: Make, results: Results, agree: Agree
) -> None:
    fast, dense = ops[op]
    for lag_batch in ((), (3,)):
        inputs = make(op, 70, 61, d=2, c=5, batch=(70, 3), lag_batch=lag_batch)
        expected = results(dense, inputs)
        for method in ("block", "fft", "band"):
            agree(results(fast, inputs, method=method), expected)


@both_ops
@every_method
@both_ways
@pytest.mark.parametrize("profile", ["near", "far", "past"])
def test_tables_that_span_five_orders(
    op: str,
    method: str,
    causal: bool,
    profile: str,
    ops: Ops,
    make: Make,
    agree: Agree,
) -> None:
    """Running sums and FFTs err by what is heavy in a table, also where a row sees the light."""
    fast, dense = ops[op]
    q, k, v, table = make(op, 50, R=49, batch=(9, 2))
    lag = torch.arange(-49, 50, dtype=torch.float64) / 49
    shape = {"near": 1 - 2 * lag.abs(), "far": 2 * lag.abs() - 1, "past": -lag}[profile]
    table = table * (6 * shape).exp() if op == "toeplitz" else table + 6 * shape.unsqueeze(-1)
    expected = dense(q, k - 6, v, table, causal=causal)
    agree([fast(q, k - 6, v, table, causal=causal, method=method)], [expected])


@both_ops
def test_a_longer_table_serves_with_its_middle(op: str, ops: Ops, make: Make, agree: Agree) -> None:
    fast, _ = ops[op]
    *qkv, table = make(op, 6, R=9)
    cut = table[..., 4:15] if op == "toeplitz" else table[..., 4:15, :]
    for method in METHODS:
        agree([fast(*qkv, table, method=method)], [fast(*qkv, cut, method=method)], 1e-14)


def test_auto_takes_a_method_for_every_shape(ops: Ops, make: Make) -> None:
    """Whatever auto chooses has the numbers of a method named."""
    for op in ("relative", "toeplitz"):
        fast, _ = ops[op]
        for T, R, d in ((40, 39, 2), (400, 399, 2), (400, 1, 2), (300, 299, 24)):
            inputs = make(op, T, d=d, R=R, batch=(1,))
            out = fast(*inputs)
            assert any(
                torch.equal(out, fast(*inputs, method=m)) for m in ("block", "fft", "band")
            ), (op, T, R)

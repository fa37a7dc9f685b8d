"""What holds for every input: causality, padding, batches, shifts, averages (Hypothesis)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

Ops = dict[str, tuple[Any, Any]]
Make = Callable[..., list[Tensor]]
Results = Callable[..., list[Tensor]]
Agree = Callable[..., None]

METHODS = ["dense", "block", "fft", "band"]
WITH_LAGS = [(op, {"method": m}) for op in ("relative", "toeplitz") for m in METHODS]
CASES: list[tuple[str, dict[str, Any]]] = [("softmax", {}), ("linear", {}), *WITH_LAGS]


def cases(chosen: list[tuple[str, dict[str, Any]]]) -> Any:
    ids = ["-".join([op, *map(str, o.values())]) for op, o in chosen]
    return pytest.mark.parametrize(("op", "options"), chosen, ids=ids)


few = settings(max_examples=15)
lengths = st.integers(1, 12)
reaches = st.integers(0, 14)
seeds = st.integers(0, 2**16)
causalities = st.booleans()
maps = st.sampled_from(["elu+1", "relu", "exp", "taylor2", "favor+", "hedgehog"])


@cases(CASES[1:])
@few
@given(
    T=st.integers(2, 12),
    R=reaches,
    at=st.integers(1, 11),
    fill=st.sampled_from([0.0, 7.0, 1e150, torch.nan, torch.inf, -torch.inf]),
    what=st.sampled_from(["q", "k", "v", "kv", "qkv"]),
    name=maps,
    masked=st.booleans(),
    seed=seeds,
)
@example(T=5, R=4, at=1, fill=torch.nan, what="qkv", name="exp", masked=False, seed=0)
@example(T=5, R=4, at=3, fill=torch.nan, what="kv", name="elu+1", masked=True, seed=0)
def test_the_future_changes_nothing_before_it(
    op: str,
    options: dict[str, Any],
    T: int,
    R: int,
    at: int,
    fill: float,
    what: str,
    name: str,
    masked: bool,
    seed: int,
    ops: Ops,
    make: Make,
) -> None:
    at = min(at, T - 1)
    inputs = make(op, T, R=R, seed=seed)
    mask = torch.arange(T) % 3 != 1 if masked else None
    options = {**options, "causal": True, "feature_map": name, "key_mask": mask}
    before = ops[op][0](*inputs, **options)
    for x, letter in zip(inputs[:3], "qkv", strict=True):
        if letter in what:
            x[..., at:, :] = fill
    after = ops[op][0](*inputs, **options)
    assert torch.equal(after[..., :at, :], before[..., :at, :])


@cases(CASES[1:])
def test_the_future_changes_nothing_over_many_blocks(
    op: str, options: dict[str, Any], ops: Ops, make: Make
) -> None:
    inputs = make(op, 700, d=2, batch=(2,))
    before = ops[op][0](*inputs, causal=True, **options)
    for at, fill in ((699, torch.nan), (513, torch.inf), (64, 1e150), (31, torch.nan)):
        for x in inputs[:3]:
            x[..., at:, :] = fill
        after = ops[op][0](*inputs, causal=True, **options)
        assert torch.equal(after[..., :at, :], before[..., :at, :])


@cases(CASES)
@few
@given(T=lengths, R=reaches, cut=st.integers(1, 12), name=maps, seed=seeds)
def test_a_causal_prefix_is_the_whole_of_a_shorter_series(
    op: str,
    options: dict[str, Any],
    T: int,
    R: int,
    cut: int,
    name: str,
    seed: int,
    ops: Ops,
    make: Make,
    agree: Agree,
) -> None:
    cut = min(cut, T)
    if op != "softmax":
        options = {**options, "feature_map": name}
    q, k, v, *table = make(op, T, R=R, seed=seed)
    whole = ops[op][0](q, k, v, *table, causal=True, **options)
    part = ops[op][0](*(x[..., :cut, :] for x in (q, k, v)), *table, causal=True, **options)
    agree([part], [whole[..., :cut, :]], floor=1.0)


@cases(CASES)
@few
@given(
    T=lengths,
    R=reaches,
    left=st.integers(0, 5),
    right=st.integers(0, 5),
    causal=causalities,
    seed=seeds,
)
def test_padding_on_either_side_changes_nothing(
    op: str,
    options: dict[str, Any],
    T: int,
    R: int,
    left: int,
    right: int,
    causal: bool,
    seed: int,
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    """Outputs and gradients, with padded queries, keys and values of any size."""
    inputs = make(op, T, c=2, R=R, batch=(1, 3), seed=seed)
    mask = torch.zeros(left + T + right, dtype=torch.bool)
    mask[left : left + T] = True

    def padded(q: Tensor, k: Tensor, v: Tensor, *table: Tensor, **options: Any) -> Tensor:
        fill = torch.full((1, 3, left + right, 3), 9.0, dtype=q.dtype)

        def pad(x: Tensor) -> Tensor:
            junk = fill[..., : x.shape[-1]]
            return torch.cat([junk[..., :left, :], x, junk[..., left:, :]], dim=-2)

        out = ops[op][0](pad(q), pad(k), pad(v), *table, key_mask=mask, **options)
        return out[..., left : left + T, :]

    options = {**options, "causal": causal}
    agree(results(padded, inputs, **options), results(ops[op][0], inputs, **options), floor=1.0)


@cases(CASES)
@few
@given(T=lengths, R=reaches, causal=causalities, masked=st.booleans(), seed=seeds)
def test_a_batch_of_one_is_its_row_in_a_batch(
    op: str,
    options: dict[str, Any],
    T: int,
    R: int,
    causal: bool,
    masked: bool,
    seed: int,
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    q, k, v, *table = make(op, T, c=2, R=R, batch=(3, 2), seed=seed)
    mask = None
    if masked:
        generator = torch.Generator().manual_seed(seed)
        mask = torch.rand(3, 1, T, generator=generator) > 0.5
    whole = ops[op][0](q, k, v, *table, causal=causal, key_mask=mask, **options)
    for i in range(3):
        one = slice(i, i + 1)
        alone = ops[op][0](
            *(x[one] for x in (q, k, v)),
            *table,
            causal=causal,
            key_mask=None if mask is None else mask[one],
            **options,
        )
        agree([alone], [whole[one]], floor=1.0)


@cases(CASES)
@few
@given(
    T=lengths,
    R=reaches,
    first=st.integers(0, 6),
    second=st.integers(0, 6),
    causal=causalities,
    seed=seeds,
)
def test_a_series_moved_in_its_window_moves_the_output(
    op: str,
    options: dict[str, Any],
    T: int,
    R: int,
    first: int,
    second: int,
    causal: bool,
    seed: int,
    ops: Ops,
    make: Make,
    agree: Agree,
) -> None:
    """Only differences of positions count: exact wherever the window around is masked."""
    q, k, v, *table = make(op, T, c=2, R=R, seed=seed)
    outputs = []
    for start in (first, second):
        window = torch.zeros(T + 6, dtype=torch.bool)
        window[start : start + T] = True
        wide = [torch.nn.functional.pad(x, (0, 0, start, 6 - start)) for x in (q, k, v)]
        out = ops[op][0](*wide, *table, causal=causal, key_mask=window, **options)
        outputs.append(out[..., start : start + T, :])
    agree(outputs[:1], outputs[1:], floor=1.0)


@cases(CASES)
@few
@given(T=lengths, shift=st.integers(0, 11), seed=seeds)
def test_a_periodic_table_makes_circular_shifts_shift_the_output(
    op: str,
    options: dict[str, Any],
    T: int,
    shift: int,
    seed: int,
    ops: Ops,
    make: Make,
    agree: Agree,
) -> None:
    """r_m = r_{m+T}: the pair (i, j) and the pair shifted around the end share a lag vector."""
    q, k, v, *table = make(op, T, R=T - 1, seed=seed)
    around = (torch.arange(2 * T - 1) + 1) % T
    axis = -2 if op == "relative" else -1
    table = [t.index_select(axis, around) for t in table]
    out = ops[op][0](q, k, v, *table, **options)
    rolled = ops[op][0](*(x.roll(shift, -2) for x in (q, k, v)), *table, **options)
    agree([rolled], [out.roll(shift, -2)], floor=1.0)


@cases(WITH_LAGS)
@few
@given(T=lengths, R=reaches, seed=seeds, value=st.floats(-5, 5), order=st.randoms())
def test_equal_lags_know_no_order(
    op: str,
    options: dict[str, Any],
    T: int,
    R: int,
    seed: int,
    value: float,
    order: Any,
    ops: Ops,
    make: Make,
    agree: Agree,
) -> None:
    q, k, v, table = make(op, T, R=R, seed=seed)
    equal = torch.full_like(table, value if op == "relative" else abs(value) + 0.1)
    permutation = list(range(T))
    order.shuffle(permutation)
    out = ops[op][0](q, k, v, equal, **options)
    permuted = ops[op][0](*(x[..., permutation, :] for x in (q, k, v)), equal, **options)
    agree([permuted], [out[..., permutation, :]], floor=1.0)


def test_unequal_lags_do_know_it(ops: Ops, make: Make) -> None:
    for op in ("relative", "toeplitz"):
        q, k, v, table = make(op, 6)
        out = ops[op][0](q, k, v, table)
        back = ops[op][0](*(x.flip(-2) for x in (q, k, v)), table)
        assert (back.flip(-2) - out).abs().max() > 1e-3


@cases(CASES)
@few
@given(
    T=lengths,
    S=lengths,
    R=reaches,
    causal=causalities,
    value=st.floats(-1e3, 1e3),
    name=maps.filter(lambda n: n != "relu"),
    seed=seeds,
)
def test_weights_sum_to_one(
    op: str,
    options: dict[str, Any],
    T: int,
    S: int,
    R: int,
    causal: bool,
    value: float,
    name: str,
    seed: int,
    ops: Ops,
    make: Make,
) -> None:
    S = T if causal else S
    if op != "softmax":
        options = {**options, "feature_map": name}
    q, k, v, *table = make(op, T, S, R=R, seed=seed)
    out = ops[op][0](q, k, torch.full_like(v, value), *table, causal=causal, **options)
    torch.testing.assert_close(out, torch.full_like(out, value), rtol=1e-13, atol=1e-13)


@cases(CASES)
@few
@given(T=lengths, S=lengths, R=reaches, seed=seeds, a=st.floats(-3, 3))
def test_linear_in_the_values(
    op: str,
    options: dict[str, Any],
    T: int,
    S: int,
    R: int,
    seed: int,
    a: float,
    ops: Ops,
    make: Make,
    agree: Agree,
) -> None:
    q, k, v, *table = make(op, T, S, R=R, seed=seed)
    w = v.flip(-1) ** 2

    def attend(values: Tensor) -> Tensor:
        return ops[op][0](q, k, values, *table, **options)

    agree([attend(v + a * w)], [attend(v) + a * attend(w)], floor=1.0)

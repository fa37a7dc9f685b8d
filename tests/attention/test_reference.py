"""The oracle itself, against triple loops in plain Python floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lagformer.attention import reference

Row = list[float]
T, S, d, c = 5, 4, 3, 2


def _elu_plus_one(x: Row) -> Row:
    return [a + 1 if a > 0 else math.exp(a) for a in x]


def _relu(x: Row) -> Row:
    return [max(a, 0.0) for a in x]


def _squared_relu(x: Row) -> Row:
    return [max(a, 0.0) ** 2 for a in x]


def _exp(x: Row) -> Row:
    return [math.exp(a) for a in x]


MAPS: dict[str, Callable[[Row], Row]] = {
    "elu+1": _elu_plus_one,
    "relu": _relu,
    "squared_relu": _squared_relu,
    "exp": _exp,
}


def dot(x: Row, y: Row) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def average(
    similarity: Callable[[int, int], float],
    v: list[Row],
    n_queries: int,
    causal: bool,
    mask: list[bool] | None,
) -> list[Row]:
    rows = []
    for i in range(n_queries):
        keys = [
            j
            for j in range(len(v))
            if not (causal and j > i) and not (mask is not None and not mask[j])
        ]
        weights = [similarity(i, j) for j in keys]
        total = math.fsum(weights)
        row = []
        for channel in range(len(v[0])):
            above = math.fsum(w * v[j][channel] for w, j in zip(weights, keys, strict=True))
            row.append(above / total if total else 0.0)
        rows.append(row)
    return rows


def draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# (S, causal, which keys are real)
SITUATIONS = [
    (4, False, None),
    (8, False, None),
    (5, True, None),
    (1, False, None),
    (4, False, [True, False, False, True]),
    (5, True, [False, True, True, False, True]),
    (4, False, [False] * 4),
]


def setting(
    S: int, mask: list[bool] | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, list[list[Row]]]:
    q, k, v = draw(T, d, seed=1), draw(S, d, seed=2), draw(S, c, seed=3)
    key_mask = None if mask is None else torch.tensor(mask)
    return q, k, v, key_mask, [q.tolist(), k.tolist(), v.tolist()]


def check(found: Tensor, expected: list[Row]) -> None:
    # a sum of at most 8 · 3 terms of order 1: 24 roundings of 1.1e-16 stay below 1e-14
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-14
    )


@pytest.mark.parametrize(("S", "causal", "mask"), SITUATIONS)
def test_softmax(S: int, causal: bool, mask: list[bool] | None) -> None:
    q, k, v, key_mask, (ql, kl, vl) = setting(S, mask)
    found = reference.softmax_attention(q, k, v, causal=causal, key_mask=key_mask)

    def similarity(i: int, j: int) -> float:
        return math.exp(dot(ql[i], kl[j]) / math.sqrt(d))

    check(found, average(similarity, vl, T, causal, mask))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(("S", "causal", "mask"), SITUATIONS)
def test_linear(name: str, S: int, causal: bool, mask: list[bool] | None) -> None:
    q, k, v, key_mask, (ql, kl, vl) = setting(S, mask)
    phi = MAPS[name]
    found = reference.linear_attention(q, k, v, feature_map=name, causal=causal, key_mask=key_mask)
    check(found, average(lambda i, j: dot(phi(ql[i]), phi(kl[j])), vl, T, causal, mask))


@pytest.mark.parametrize("R", [0, 1, 2, 4, 9])
@pytest.mark.parametrize(("S", "causal", "mask"), SITUATIONS)
def test_relative(R: int, S: int, causal: bool, mask: list[bool] | None) -> None:
    q, k, v, key_mask, (ql, kl, vl) = setting(S, mask)
    lags = draw(2 * R + 1, d, seed=4)
    # written as r_m for m = -R … R, not as rows of a table
    r = {m: _elu_plus_one(lags[R + m].tolist()) for m in range(-R, R + 1)}
    found = reference.relative_linear_attention(q, k, v, lags, causal=causal, key_mask=key_mask)

    def similarity(i: int, j: int) -> float:
        m = -R if j - i < -R else R if j - i > R else j - i
        phi_q = _elu_plus_one(ql[i])
        return dot(phi_q, _elu_plus_one(kl[j])) + dot(phi_q, r[m])

    check(found, average(similarity, vl, T, causal, mask))


@pytest.mark.parametrize("R", [0, 1, 2, 4, 9])
@pytest.mark.parametrize(("S", "causal", "mask"), SITUATIONS)
def test_toeplitz(R: int, S: int, causal: bool, mask: list[bool] | None) -> None:
    q, k, v, key_mask, (ql, kl, vl) = setting(S, mask)
    weights = draw(2 * R + 1, seed=4).exp()
    w = {m: float(weights[R + m]) for m in range(-R, R + 1)}
    found = reference.toeplitz_linear_attention(q, k, v, weights, causal=causal, key_mask=key_mask)

    def similarity(i: int, j: int) -> float:
        m = -R if j - i < -R else R if j - i > R else j - i
        return dot(_elu_plus_one(ql[i]), _elu_plus_one(kl[j])) * w[m]

    check(found, average(similarity, vl, T, causal, mask))


def test_clamp_rule_by_hand() -> None:
    assert reference.lag_index(3, 4, 1).tolist() == [[1, 2, 2, 2], [0, 1, 2, 2], [0, 0, 1, 2]]
    assert reference.lag_index(2, 2, 3).tolist() == [[3, 4], [2, 3]]
    assert reference.lag_index(2, 3, 0).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_batches_and_heads_are_treated_one_by_one() -> None:
    q, k = draw(2, 3, 5, d, seed=1), draw(2, 3, 5, d, seed=2)
    v, lags = draw(2, 3, 5, c, seed=3), draw(3, 9, d, seed=4)
    mask = draw(2, 1, 5, seed=5) > 0
    whole = reference.relative_linear_attention(q, k, v, lags, causal=True, key_mask=mask)
    for b in range(2):
        for h in range(3):
            one = reference.relative_linear_attention(
                q[b, h], k[b, h], v[b, h], lags[h], causal=True, key_mask=mask[b, 0]
            )
            check(whole[b, h], one.tolist())


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("op", ["softmax", "linear", "relative", "toeplitz"])
def test_what_is_masked_has_no_part(op: str, fill: float) -> None:
    q, k, v, key_mask, _ = setting(4, [True, False, True, False])
    assert key_mask is not None
    table = {"relative": [draw(7, d, seed=4)], "toeplitz": [draw(7, seed=4).exp()]}.get(op, [])
    attend = getattr(reference, f"{op}_attention" if not table else f"{op}_linear_attention")
    clean = attend(q, k, v, *table, key_mask=key_mask)
    k, v = k.clone(), v.clone()
    k[~key_mask], v[~key_mask] = fill, fill
    assert torch.equal(attend(q, k, v, *table, key_mask=key_mask), clean)


def test_a_row_without_weight_gives_zeros() -> None:
    q, k, v = draw(T, d, seed=1), draw(S, d, seed=2), draw(S, c, seed=3)
    q[1] = -q[1].abs()
    for name in ("relu", "squared_relu"):
        out = reference.linear_attention(q, k, v, feature_map=name)
        assert torch.equal(out[1], torch.zeros(c, dtype=torch.float64))
        assert out[0].abs().sum() > 0


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_taylor_maps_give_the_truncated_series(width: int) -> None:
    q, k = draw(50, width, seed=1), draw(50, width, seed=2)
    for phi, features in (
        (reference.taylor2, 1 + width + width * (width + 1) // 2),
        (reference.taylor2_full, 1 + width + width * width),
    ):
        assert phi(q).shape == (50, features)
        for i in range(50):
            x = dot(q[i].tolist(), k[i].tolist()) / math.sqrt(width)
            series = 1 + x + x * x / 2
            assert series >= 0.5
            assert math.isclose(dot(phi(q[i]).tolist(), phi(k[i]).tolist()), series, rel_tol=1e-12)


def test_taylor_kernel_is_least_at_minus_one_and_still_positive() -> None:
    q = torch.tensor([2.0], dtype=torch.float64)
    k = torch.tensor([-0.5], dtype=torch.float64)  # x = -1, where 1 + x + x²/2 = 1/2
    for phi in (reference.taylor2, reference.taylor2_full):
        assert math.isclose(float(phi(q) @ phi(k)), 0.5, rel_tol=1e-15)


def test_elu_plus_one_never_cancels() -> None:
    x = torch.tensor([-700.0, -100, -17, -1e-30, 0, 1e-30, 3], dtype=torch.float64)
    expected = [math.exp(-700), math.exp(-100), math.exp(-17), 1.0, 1.0, 1.0, 4.0]
    torch.testing.assert_close(
        reference.elu_plus_one(x), torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0
    )


def test_any_function_is_a_feature_map_and_an_unknown_name_is_not() -> None:
    q, k, v = draw(T, d, seed=1), draw(S, d, seed=2), draw(S, c, seed=3)
    found = reference.linear_attention(q, k, v, feature_map=torch.sigmoid)
    ql, kl = q.sigmoid().tolist(), k.sigmoid().tolist()
    check(found, average(lambda i, j: dot(ql[i], kl[j]), v.tolist(), T, False, None))
    with pytest.raises(ValueError, match="softplus"):
        reference.linear_attention(q, k, v, feature_map="softplus")

"""Linear and softmax attention beside the dense definitions: forward and every gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_judge.tasks import get_task

from lagformer.attention import linear_attention, reference, softmax_attention
from lagformer.attention.causal_form import CHUNK, SEGMENT

Make = Callable[..., list[Tensor]]
Results = Callable[..., list[Tensor]]
Agree = Callable[..., None]

PRIMES = [2, 3, 31, 67, 127]


def mask_of(kind: str, S: int) -> Tensor | None:
    """(2, 1, S): another one for every batch row."""
    mask = torch.ones(2, 1, S, dtype=torch.bool)
    if kind == "none":
        return None
    if kind == "left":
        mask[0, :, : S // 3], mask[1, :, :1] = False, False
    elif kind == "right":
        mask[0, :, S - S // 3 :], mask[1, :, S - 1 :] = False, False
    elif kind == "random":
        mask = torch.rand(2, 1, S, generator=torch.Generator().manual_seed(2)) > 0.4
    elif kind == "one row":
        mask[0] = False
    return mask


MASKS = ["none", "left", "right", "random", "one row"]


@pytest.mark.parametrize("d", [8, 16])
@pytest.mark.parametrize("causal", [False, True])
def test_to_the_last_digit_at_fifty_tokens(
    causal: bool, d: int, make: Make, results: Results
) -> None:
    inputs = make("linear", 50, d=d, batch=(9, 4))
    found = results(linear_attention, inputs, causal=causal)
    expected = results(reference.linear_attention, inputs, causal=causal)
    # averages of values of order 1
    assert float((found[0] - expected[0]).abs().max()) <= 1e-15
    # a gradient is the difference of two such sums, each rounded in both paths
    for gradient, exact in zip(found[1:], expected[1:], strict=True):
        assert float((gradient - exact).abs().max()) <= 2e-15 * max(1, float(exact.abs().max()))


@pytest.mark.parametrize("T", PRIMES)
@pytest.mark.parametrize("causal", [False, True])
def test_prime_lengths(causal: bool, T: int, make: Make, results: Results, agree: Agree) -> None:
    inputs = make("linear", T, d=5, c=2)
    agree(
        results(linear_attention, inputs, causal=causal),
        results(reference.linear_attention, inputs, causal=causal),
    )


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("op", ["softmax", "linear"])
def test_masks(
    op: str,
    causal: bool,
    kind: str,
    ops: dict[str, tuple[Any, Any]],
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    inputs = make(op, 13, c=2)
    options = {"causal": causal, "key_mask": mask_of(kind, 13)}
    fast, dense = ops[op]
    found = results(fast, inputs, **options)
    agree(found, results(dense, inputs, **options))
    if kind == "one row":
        for x in found:
            assert torch.equal(x[0], torch.zeros_like(x[0]))


@pytest.mark.parametrize("op", ["softmax", "linear"])
@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 9), (9, 1), (5, 90), (90, 5)])
def test_other_lengths(
    op: str,
    T: int,
    S: int,
    ops: dict[str, tuple[Any, Any]],
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    inputs = make(op, T, S, c=4)
    fast, dense = ops[op]
    # With one key the gradients by q and k are 0; their terms are of the order of one.
    agree(results(fast, inputs), results(dense, inputs), floor=1.0 if S == 1 else 0.0)
    mask = torch.arange(S) % 2 == 0
    agree(
        results(fast, inputs, key_mask=mask),
        results(dense, inputs, key_mask=mask),
        floor=1.0 if mask.sum() == 1 else 0.0,
    )


@pytest.mark.parametrize("op", ["softmax", "linear"])
@pytest.mark.parametrize(("T", "S"), [(0, 0), (0, 4), (4, 0)])
@pytest.mark.parametrize("masked", [False, True])
def test_nothing_to_attend_to_gives_zeros(
    op: str,
    T: int,
    S: int,
    masked: bool,
    ops: dict[str, tuple[Any, Any]],
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    inputs = make(op, T, S, c=4)
    fast, dense = ops[op]
    mask = torch.ones(S, dtype=torch.bool) if masked else None
    for causal in (False, True) if T == S else (False,):
        found = results(fast, inputs, causal=causal, key_mask=mask)
        agree(found, results(dense, inputs, causal=causal, key_mask=mask))
        assert found[0].shape == (2, 3, T, 4)
        assert all(not x.any() for x in found)


def test_no_rows_at_all(make: Make, results: Results) -> None:
    for causal in (False, True):
        found = results(linear_attention, make("linear", 5, batch=(0, 3)), causal=causal)
        assert found[0].shape == (0, 3, 5, 3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("batch", "kv_batch"),
    [((), ()), ((3,), (3,)), ((2, 3, 2), (2, 3, 2)), ((4, 3), (4, 1)), ((4, 3), (3,)), ((), (2,))],
)
def test_leading_dimensions(
    batch: tuple[int, ...],
    kv_batch: tuple[int, ...],
    causal: bool,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    inputs = make("linear", 7, c=2, batch=batch, kv_batch=kv_batch)
    for mask in (None, torch.arange(7) > 1):
        agree(
            results(linear_attention, inputs, causal=causal, key_mask=mask),
            results(reference.linear_attention, inputs, causal=causal, key_mask=mask),
        )


@pytest.mark.parametrize(
    "name", ["relu", "squared_relu", "exp", "taylor2", "taylor2_full", "elu+1"]
)
@pytest.mark.parametrize("causal", [False, True])
def test_other_feature_maps(
    name: str, causal: bool, make: Make, results: Results, agree: Agree
) -> None:
    inputs = make("linear", 19, d=4, c=3)
    inputs[0][:, :, 2] = -1.0  # without weight under relu
    found = results(linear_attention, inputs, causal=causal, feature_map=name)
    agree(found, results(reference.linear_attention, inputs, causal=causal, feature_map=name))
    if "relu" in name:
        assert not found[0][:, :, 2].any()
        assert not found[1][:, :, 2].any()


def test_keys_without_weight_give_zeros_and_zero_gradients(make: Make, results: Results) -> None:
    q, k, v = make("linear", 3, 2, batch=())
    found = results(linear_attention, [q, -k.abs(), v], feature_map=("exp", "relu"))
    assert not any(x.any() for x in found)


# A causal segment holds SEGMENT // 64 positions: whole segments, an odd chunk, an odd end.
LONG = [601, 2 * CHUNK * 10 - 1, SEGMENT // 64 + CHUNK + 5]


@pytest.mark.parametrize("T", LONG)
@pytest.mark.parametrize("causal", [False, True])
def test_many_chunks_and_segments(
    T: int, causal: bool, make: Make, results: Results, agree: Agree
) -> None:
    inputs = make("linear", T, d=64, c=3, batch=(2,))
    mask = torch.arange(T) % 7 != 3
    for key_mask in (None, mask):
        agree(
            results(linear_attention, inputs, causal=causal, key_mask=key_mask),
            results(reference.linear_attention, inputs, causal=causal, key_mask=key_mask),
        )


def test_pieces_of_the_fused_step(make: Make, results: Results, agree: Agree) -> None:
    """So many rows, and so long ones, that both are worked on in pieces."""
    for T, S, d, batch in ((300, 211, 4, (331,)), (5, 9001, 32, (2,)), (9001, 5, 32, (2,))):
        inputs = make("linear", T, S, d=d, c=2, batch=batch)
        agree(results(linear_attention, inputs), results(reference.linear_attention, inputs))


def test_softmax_does_not_overflow(make: Make, agree: Agree) -> None:
    q, k, v = (30 * x for x in make("softmax", 9))
    for causal in (False, True):
        expected = reference.softmax_attention(q, k, v, causal=causal)
        agree([softmax_attention(q, k, v, causal=causal)], [expected])
        assert expected.isfinite().all()


def test_the_public_judge_accepts_the_library_function() -> None:
    for test in get_task("linear_attention")["tests"]:
        code = test["code"].replace("{fn}", "linear_attention")
        exec(code, {"torch": torch, "linear_attention": linear_attention})

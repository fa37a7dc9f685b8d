"""Inputs that are views: transposed, sliced, reversed, expanded, interleaved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Ops = dict[str, tuple[Any, Any]]
Make = Callable[..., list[Tensor]]
Results = Callable[..., list[Tensor]]
Agree = Callable[..., None]

CASES = [
    ("softmax", {}),
    ("linear", {}),
    ("linear", {"causal": True}),
    *(
        (op, {"method": method, "causal": causal})
        for op in ("relative", "toeplitz")
        for method in ("dense", "block", "fft", "band", "auto")
        for causal in (False, True)
    ),
]
every_case = pytest.mark.parametrize(
    ("op", "options"), CASES, ids=["-".join([op, *map(str, o.values())]) for op, o in CASES]
)


def as_views(x: Tensor) -> dict[str, Tensor]:
    """Tensors with the numbers of x and other strides, offsets or storage."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), torch.nan, dtype=x.dtype)
    wide[..., 1::2] = x
    long = torch.full((*x.shape[:-2], x.shape[-2] + 4, x.shape[-1]), torch.nan, dtype=x.dtype)
    long[..., 2:-2, :] = x
    return {
        "transposed": x.transpose(-1, -2).contiguous().transpose(-1, -2),
        "sliced width": wide[..., 1::2],
        "sliced time": long[..., 2:-2, :],
        "batch last": x.movedim(0, -1).contiguous().movedim(-1, 0),
        "heads after time": x.transpose(-2, -3).contiguous().transpose(-2, -3),
    }


@every_case
@pytest.mark.parametrize("rows", [2, 9])
def test_views_have_the_numbers_of_their_copies(
    op: str,
    options: dict[str, Any],
    rows: int,
    ops: Ops,
    make: Make,
    results: Results,
    agree: Agree,
) -> None:
    fast, dense = ops[op]
    inputs = make(op, 9, c=2, R=5, batch=(rows, 3))
    expected = results(dense, inputs, **{n: o for n, o in options.items() if n != "method"})
    views = [as_views(x if x.dim() > 2 else x.unsqueeze(0)) for x in inputs]
    for kind in views[0]:
        viewed = [
            view[kind].view_as(x) if x.dim() > 2 else view[kind][0]
            for view, x in zip(views, inputs, strict=True)
        ]
        assert any(not x.is_contiguous() for x in viewed)
        # detach().clone() would tidy the strides: gradients are asked of the views themselves
        leaves = [x.detach().requires_grad_() for x in viewed]
        out = fast(*leaves, **options)
        cotangent = torch.randn(
            out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        agree([out.detach(), *torch.autograd.grad(out, leaves, cotangent)], expected)
        with torch.no_grad():
            agree([fast(*viewed, **options)], expected[:1])


@every_case
def test_expanded_keys_and_values(
    op: str, options: dict[str, Any], ops: Ops, make: Make, results: Results, agree: Agree
) -> None:
    """Grouped heads as expand makes them: stride 0. Their gradients add up."""
    fast, dense = ops[op]
    inputs = make(op, 6, c=2, batch=(2, 4), kv_batch=(2, 1), lag_batch=(1,))

    def expanded(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(q: Tensor, k: Tensor, v: Tensor, *table: Tensor, **options: Any) -> Tensor:
            k, v = (x.expand(2, 4, *x.shape[-2:]) for x in (k, v))
            return attend(q, k, v, *(t.expand(4, *t.shape[1:]) for t in table), **options)

        return call

    expected = results(
        expanded(dense), inputs, **{n: o for n, o in options.items() if n != "method"}
    )
    agree(results(expanded(fast), inputs, **options), expected)
    with torch.no_grad():
        agree([expanded(fast)(*inputs, **options)], expected[:1])


@every_case
def test_expanded_leaves_have_a_gradient_for_each_copy(
    op: str, options: dict[str, Any], ops: Ops, make: Make
) -> None:
    """What is shared in memory is not shared in the graph: every repetition counts by itself."""
    fast, _ = ops[op]
    q, k, v, *table = make(op, 6, c=2, batch=(2, 4), kv_batch=(2, 1))
    gradients = []
    for copy in (False, True):
        k4, v4 = (x.expand(2, 4, *x.shape[-2:]) for x in (k, v))
        leaves = [x.clone(memory_format=torch.contiguous_format) if copy else x for x in (k4, v4)]
        leaves = [x.detach().requires_grad_() for x in leaves]
        out = fast(q, *leaves, *table, **options)
        gradients.append(torch.autograd.grad(out.square().sum(), leaves))
    for f, e in zip(*gradients, strict=True):
        assert f.shape == e.shape
        torch.testing.assert_close(f, e, rtol=1e-12, atol=1e-15)


@every_case
def test_expanded_rows_and_time(
    op: str, options: dict[str, Any], ops: Ops, make: Make, results: Results, agree: Agree
) -> None:
    """One token for every time, one series for every row, and a gradient that is expanded."""
    fast, dense = ops[op]
    inputs = make(op, 1, c=2, R=3, batch=(1, 3))

    def total(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(q: Tensor, k: Tensor, v: Tensor, *table: Tensor, **options: Any) -> Tensor:
            q, k = (x.expand(2, 3, 8, x.shape[-1]) for x in (q, k))
            times = torch.arange(8.0, dtype=torch.float64).view(8, 1)
            return attend(q, k, v.expand(2, 3, 8, 2) * times, *table, **options).sum()

        return call

    plain = {n: o for n, o in options.items() if n != "method"}
    # A sum of averages of equal weights: the gradients by what the weights are made of cancel.
    agree(results(total(fast), inputs, **options), results(total(dense), inputs, **plain), floor=1)


@every_case
def test_a_mask_may_be_a_view_too(
    op: str, options: dict[str, Any], ops: Ops, make: Make, agree: Agree
) -> None:
    fast, _ = ops[op]
    inputs = make(op, 6, R=2)
    mask = torch.tensor([True, False, True, True, False, True, True])
    for view in (mask[1:], mask[:6].flip(0), mask[:6].expand(2, 1, 6)):
        copied = fast(*inputs, key_mask=view.contiguous(), **options)
        agree([fast(*inputs, key_mask=view, **options)], [copied], 0)


@every_case
def test_inputs_are_left_as_they_were(
    op: str, options: dict[str, Any], ops: Ops, make: Make, results: Results
) -> None:
    fast, _ = ops[op]
    inputs = make(op, 6, R=2)
    before = [x.clone() for x in inputs]
    results(fast, inputs, key_mask=torch.arange(6) > 1, **options)
    fast(*inputs, **options)
    assert all(torch.equal(x, b) for x, b in zip(inputs, before, strict=True))

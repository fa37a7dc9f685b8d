"""First and second derivatives by finite differences, for every op, method and mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lagformer.attention import feature_map

Ops = dict[str, tuple[Any, Any]]
Make = Callable[..., list[Tensor]]

METHODS = ["dense", "block", "fft", "band"]
CASES = [
    *(("linear", {"causal": causal}) for causal in (False, True)),
    *(
        (op, {"method": method, "causal": causal})
        for op in ("relative", "toeplitz")
        for method in METHODS
        for causal in (False, True)
    ),
]
every_case = pytest.mark.parametrize(
    ("op", "options"), CASES, ids=["-".join([op, *map(str, o.values())]) for op, o in CASES]
)


def leaves(inputs: list[Tensor]) -> tuple[Tensor, ...]:
    return tuple(x.requires_grad_() for x in inputs)


@every_case
@pytest.mark.parametrize("masked", [False, True])
def test_first_and_second_derivatives(
    op: str, options: dict[str, Any], masked: bool, ops: Ops, make: Make
) -> None:
    fast, _ = ops[op]
    mask = torch.tensor([True, False, True, True]) if masked else None
    inputs = leaves(make(op, 4, d=2, c=1, R=2, batch=(2,), lag_batch=()))

    def call(*tensors: Tensor) -> Tensor:
        return fast(*tensors, key_mask=mask, **options)

    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("op", ["linear", "relative", "toeplitz"])
@pytest.mark.parametrize(("T", "S"), [(2, 5), (5, 2)])
def test_derivatives_between_two_series(op: str, T: int, S: int, ops: Ops, make: Make) -> None:
    fast, _ = ops[op]
    for method in METHODS if op != "linear" else (None,):
        options = {} if method is None else {"method": method}
        inputs = leaves(make(op, T, S, d=2, c=1, R=2, batch=(), lag_batch=()))
        assert torch.autograd.gradcheck(lambda *x, o=options: fast(*x, **o), inputs)
        assert torch.autograd.gradgradcheck(lambda *x, o=options: fast(*x, **o), inputs)


@pytest.mark.parametrize("op", ["linear", "relative", "toeplitz"])
@pytest.mark.parametrize("name", ["exp", "taylor2", "favor+", "hedgehog"])
def test_derivatives_through_other_maps(op: str, name: str, ops: Ops, make: Make) -> None:
    """The scaled queries of the exponential maps have the gradient of the unscaled ones."""
    fast, _ = ops[op]
    phi = feature_map(name, 2).double()
    inputs = leaves(make(op, 3, d=2, c=1, batch=(), lag_batch=()))
    for causal in (False, True):
        assert torch.autograd.gradcheck(
            lambda *x, c=causal: fast(*x, feature_map=phi, causal=c), inputs
        )
        assert torch.autograd.gradgradcheck(
            lambda *x, c=causal: fast(*x, feature_map=phi, causal=c), inputs
        )


@every_case
def test_only_what_needs_a_gradient_gets_one(
    op: str, options: dict[str, Any], ops: Ops, make: Make
) -> None:
    fast, _ = ops[op]
    inputs = make(op, 5, R=2)
    together = leaves(make(op, 5, R=2))
    expected = torch.autograd.grad(fast(*together, **options).square().sum(), together)
    for i, e in enumerate(expected):
        alone = [x.detach().requires_grad_(j == i) for j, x in enumerate(inputs)]
        (g,) = torch.autograd.grad(fast(*alone, **options).square().sum(), alone[i])
        torch.testing.assert_close(g, e, rtol=1e-12, atol=1e-15)


@every_case
@pytest.mark.parametrize("rows", [2, 9])
def test_second_derivatives_with_some_inputs_fixed(
    op: str, options: dict[str, Any], rows: int, ops: Ops, make: Make
) -> None:
    """A gradient penalty: only one input is differentiated, and the penalty's gradient is."""
    fast, dense = ops[op]
    plain = {n: o for n, o in options.items() if n != "method"}
    for wanted in range(4 if op != "linear" else 3):
        penalties = []
        for attend, kwargs in ((fast, options), (dense, plain)):
            inputs = make(op, 5, R=2, batch=(rows, 3))
            inputs[wanted].requires_grad_()
            out = attend(*inputs, **kwargs).square().sum()
            (g,) = torch.autograd.grad(out, inputs[wanted], create_graph=True)
            penalties.append(torch.autograd.grad(g.square().sum(), inputs[wanted])[0])
        torch.testing.assert_close(*penalties, rtol=1e-11, atol=1e-14)

"""What the attention tests share: small problems, and an op's numbers beside the oracle's.

Test modules cannot import one another, so the helpers are session fixtures that return functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lagformer.attention import (
    linear_attention,
    reference,
    relative_linear_attention,
    softmax_attention,
    toeplitz_linear_attention,
)

Op = Callable[..., Tensor]
Tensors = list[Tensor]

# name → (the op, its dense definition)
OPS: dict[str, tuple[Op, Op]] = {
    "softmax": (softmax_attention, reference.softmax_attention),
    "linear": (linear_attention, reference.linear_attention),
    "relative": (relative_linear_attention, reference.relative_linear_attention),
    "toeplitz": (toeplitz_linear_attention, reference.toeplitz_linear_attention),
}


def _make(
    name: str,
    T: int = 7,
    S: int | None = None,
    *,
    d: int = 3,
    c: int | None = None,
    R: int | None = None,
    batch: Sequence[int] = (2, 3),
    kv_batch: Sequence[int] | None = None,
    lag_batch: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Tensors:
    """q, k, v and, for ops with a table, one for each of the last leading dimension (heads)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    S = T if S is None else S
    kv_batch = batch if kv_batch is None else kv_batch
    lag_batch = tuple(batch)[-1:] if lag_batch is None else lag_batch
    M = 2 * (max(T, S, 1) - 1 if R is None else R) + 1
    inputs = [normal(*batch, T, d), normal(*kv_batch, S, d), normal(*kv_batch, S, c or d)]
    if name == "relative":
        inputs.append(normal(*lag_batch, M, d))
    elif name == "toeplitz":
        inputs.append(normal(*lag_batch, M).exp())
    return inputs


def _results(op: Op, inputs: Tensors, **options: Any) -> Tensors:
    """The output, and the gradient of every input for one fixed random cotangent."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = op(*leaves, **options)
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    # an empty output still has zero gradients
    gradients = torch.autograd.grad(out, leaves, cotangent, materialize_grads=True)
    return [out.detach(), *gradients]


def _agree(found: Tensors, expected: Tensors, tolerance: float = 1e-12, floor: float = 0.0) -> None:
    """Largest error ≤ tolerance, relative to each tensor's own largest entry (or ``floor``).

    ``floor`` is for sums whose terms cancel: with one key the average is that key's value, so the
    gradients by q, k and lags are exactly 0 while their terms are not.
    """
    assert len(found) == len(expected)
    for i, (f, e) in enumerate(zip(found, expected, strict=True)):
        what = "the output" if i == 0 else f"the gradient of input {i - 1}"
        assert f.shape == e.shape, what
        assert f.dtype == e.dtype, what
        if e.numel():
            error = float((f - e).detach().abs().max())
            scale = max(float(e.detach().abs().max()), floor)
            assert error <= tolerance * scale, f"{what}: error {error:.3g}, scale {scale:.3g}"


@pytest.fixture(scope="session")
def ops() -> dict[str, tuple[Op, Op]]:
    return OPS


@pytest.fixture(scope="session")
def make() -> Callable[..., Tensors]:
    return _make


@pytest.fixture(scope="session")
def results() -> Callable[..., Tensors]:
    return _results


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    return _agree

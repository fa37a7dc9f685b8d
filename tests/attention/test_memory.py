"""No tensor of T·S or T·l·c numbers is made outside the dense method, forward or backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Ops = dict[str, tuple[Any, Any]]
Make = Callable[..., list[Tensor]]


class Largest(TorchDispatchMode):
    """Records the most numbers any storage holds that an operation returns (views hold none)."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.itemsize)
        return out


def largest(op: Callable[..., Tensor], inputs: list[Tensor], **options: Any) -> int:
    leaves = [x.requires_grad_() for x in inputs]
    with Largest() as seen:
        op(*leaves, **options).square().sum().backward()
    return seen.numbers


CASES = [
    *(("linear", {"causal": causal}) for causal in (False, True)),
    *(
        (op, {"method": method, "causal": causal})
        for op in ("relative", "toeplitz")
        for method in ("block", "fft", "band", "auto")
        for causal in (False, True)
    ),
]

# A step works on at most this many numbers, whatever T (CACHED in the source), and then some
STEP = 2**18


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("op", "options"), CASES, ids=["-".join([op, *map(str, o.values())]) for op, o in CASES]
)
def test_largest_tensor(
    op: str, options: dict[str, Any], masked: bool, rows: int, ops: Ops, make: Make
) -> None:
    T, l, c = 2003 if rows == 1 else 1009, 24, 24
    R = 30 if options.get("method") == "band" else T - 1
    mask = torch.arange(T) > 3 if masked else None
    inputs = make(op, T, d=l, c=c, R=R, batch=(rows, 1), dtype=torch.float32)
    numbers = largest(ops[op][0], inputs, key_mask=mask, **options)
    # inputs and features, and a table of 2T rows, padded to a power of two
    assert numbers <= max(STEP, rows * T * (l + c), 4 * T * (l + c))
    assert numbers < T * l * c
    assert numbers < T * T


def test_the_watch_sees_what_dense_makes(ops: Ops, make: Make) -> None:
    for op in ("relative", "toeplitz"):
        inputs = make(op, 300, batch=(1,))
        assert largest(ops[op][0], inputs, method="dense") >= 300 * 300


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_million_positions(causal: bool, ops: Ops, make: Make) -> None:
    T = 1_000_000
    inputs = make("linear", T, d=4, batch=(), dtype=torch.float32)
    numbers = largest(ops["linear"][0], inputs, causal=causal)
    assert numbers <= 4 * T * (4 + 1)
    assert all(x.grad is not None and x.grad.isfinite().all() for x in inputs)

"""Input that does not fit: one line that names the shapes, for every op alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Ops = dict[str, tuple[Any, Any]]
Make = Callable[..., list[Tensor]]

every_op = pytest.mark.parametrize("op", ["softmax", "linear", "relative", "toeplitz"])
with_lags = pytest.mark.parametrize("op", ["relative", "toeplitz"])


def refused(attend: Callable[..., Tensor], inputs: list[Tensor], said: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=said) as error:
        attend(*inputs, **options)
    assert "\n" not in str(error.value)


@every_op
def test_shapes_of_queries_keys_and_values(op: str, ops: Ops, make: Make) -> None:
    attend = ops[op][0]
    q, k, v, *table = make(op, 7, batch=(2, 3))
    sizes = r".*q \(2, 3, 7, 3\)"
    refused(attend, [q, k[..., :2], v, *table], f"width{sizes}, k \\(2, 3, 7, 2\\)")
    refused(attend, [q, k, v[..., :5, :], *table], f"length{sizes}.*v \\(2, 3, 5, 3\\)")
    refused(attend, [q, k[:1, :2], v, *table], f"broadcast{sizes}, k \\(1, 2, 7, 3\\)")
    refused(attend, [q[0, 0, 0], k, v, *table], r"\(\.\.\., time, width\), got q \(3,\)")
    short = [k[..., :5, :], v[..., :5, :]]
    refused(attend, [q, *short, *table], f"as many queries as keys{sizes}", causal=True)


@every_op
def test_types(op: str, ops: Ops, make: Make) -> None:
    attend = ops[op][0]
    inputs = make(op, 7)
    for i in range(len(inputs)):
        mixed = [x.float() if i == j else x for j, x in enumerate(inputs)]
        refused(attend, mixed, "type.*torch.float")
    for dtype in (torch.int64, torch.bool, torch.complex128):
        refused(attend, [x.to(dtype) for x in inputs], f"got {dtype}")


@every_op
def test_masks(op: str, ops: Ops, make: Make) -> None:
    attend = ops[op][0]
    inputs = make(op, 7)
    for dtype in (torch.float64, torch.int64, torch.uint8):
        refused(attend, inputs, f"boolean.*{dtype}", key_mask=torch.ones(7, dtype=dtype))
    real = torch.ones(2, 3, 8, dtype=torch.bool)
    refused(attend, inputs, r"key_mask \(2, 3, 8\)", key_mask=real)
    refused(attend, inputs, r"key_mask \(\)", key_mask=torch.tensor(True))
    refused(
        attend, inputs, r"broadcast.*key_mask \(4, 1, 7\)", key_mask=real[:1, 0, :7].expand(4, 1, 7)
    )


@with_lags
def test_tables(op: str, ops: Ops, make: Make) -> None:
    attend = ops[op][0]
    q, k, v, table = make(op, 7, R=2)
    name = "lags" if op == "relative" else "weights"
    even = table[:, :4]
    refused(attend, [q, k, v, even], f"{name} .*odd.*M = 4")
    refused(attend, [q, k, v, table[:, :0]], f"{name} .*odd.*M = 0")
    refused(attend, [q, k, v, table[:2]], rf"broadcast: {name} \(2, 5.*\(2, 3\)")
    if op == "relative":
        refused(attend, [q, k, v, table[..., :2]], r"width: lags \(3, 5, 2\), q \(2, 3, 7, 3\)")
        refused(attend, [q, k, v, table[0, 0]], r"lags is \(\.\.\., M, d\), got \(3,\)")
    else:
        refused(attend, [q, k, v, table[0, 0]], r"weights is \(\.\.\., M\), got \(\)")


@with_lags
@pytest.mark.parametrize("method", ["", "FFT", "direct", None])
def test_methods(op: str, method: str | None, ops: Ops, make: Make) -> None:
    said = f"unknown method {method!r}; known: auto, dense, block, fft, band"
    refused(ops[op][0], make(op, 7), said, method=method)


@pytest.mark.parametrize("op", ["linear", "relative", "toeplitz"])
def test_feature_maps(op: str, ops: Ops, make: Make) -> None:
    attend = ops[op][0]
    refused(
        attend, make(op, 7), r"unknown feature map 'sigmoid'; known: elu\+1", feature_map="sigmoid"
    )
    refused(attend, make(op, 7), "unknown feature map", feature_map=("elu+1", "sigmoid"))
    refused(attend, make(op, 7), "feature_map is a name.*got 3", feature_map=3)
    refused(attend, make(op, 7), "feature_map is a name", feature_map=("elu+1", None))
    refused(attend, make(op, 7), "feature_map is", feature_map=("elu+1", "elu+1", "elu+1"))
    refused(attend, make(op, 7), "feature_map is", feature_map=("elu+1",))

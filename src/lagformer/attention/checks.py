"""Shape rules shared by every attention function: one clear line for what does not fit."""

from __future__ import annotations

import torch
from torch import Tensor

METHODS = ("auto", "dense", "block", "fft", "band")


def check_method(method: str) -> None:
    """Raise ValueError for an unknown way of summing over lags."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known: {', '.join(METHODS)}")


def broadcast_batch(*tensors: Tensor) -> torch.Size:
    """The common leading dimensions of (..., time, width) tensors."""
    return _broadcast(*(x.shape[:-2] for x in tensors))


def _broadcast(*shapes: torch.Size) -> torch.Size:
    return torch.Size(torch.broadcast_shapes(*shapes))


def check_qkv(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_mask: Tensor | None) -> None:
    """Raise ValueError, naming the shapes, unless q (…,T,d), k (…,S,d), v (…,S,c) fit together."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if min(q.dim(), k.dim(), v.dim()) < 2:
        raise ValueError(f"q, k and v are (..., time, width), got {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k differ in width: {shapes}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"k and v differ in length: {shapes}")
    if causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(f"causal attention needs as many queries as keys: {shapes}")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v differ in type: {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.dtype.is_floating_point:
        raise ValueError(f"attention needs real floating-point inputs, got {q.dtype}")
    if key_mask is not None:
        if key_mask.dtype != torch.bool:
            raise ValueError(f"key_mask is boolean, True = a real position; got {key_mask.dtype}")
        if key_mask.dim() < 1 or key_mask.shape[-1] != k.shape[-2]:
            raise ValueError(
                f"key_mask {tuple(key_mask.shape)} does not end in the keys of {shapes}"
            )
    try:
        mask_shape = key_mask.shape[:-1] if key_mask is not None else torch.Size()
        _broadcast(q.shape[:-2], k.shape[:-2], v.shape[:-2], mask_shape)
    except RuntimeError:
        mask = "" if key_mask is None else f", key_mask {tuple(key_mask.shape)}"
        raise ValueError(f"leading dimensions do not broadcast: {shapes}{mask}") from None


def check_lags(lags: Tensor, q: Tensor, batch: torch.Size, *, ndim: int, name: str) -> None:
    """Raise ValueError unless the table has an odd number of lags, the width of q and its batch.

    ``ndim`` is the number of trailing dimensions: 2 for vectors (…,M,d), 1 for weights (…,M).
    """
    form = "(..., M, d)" if ndim == 2 else "(..., M)"
    if lags.dim() < ndim:
        raise ValueError(f"{name} is {form}, got {tuple(lags.shape)}")
    M = lags.shape[-ndim]
    if M % 2 == 0:
        raise ValueError(f"{name} holds lags -R … R, an odd number M = 2R + 1; got M = {M}")
    if ndim == 2 and lags.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"{name} and q differ in width: {name} {tuple(lags.shape)}, q {tuple(q.shape)}"
        )
    if lags.dtype != q.dtype:
        raise ValueError(f"{name} and q differ in type: {lags.dtype}, {q.dtype}")
    try:
        _broadcast(lags.shape[:-ndim], batch)
    except RuntimeError:
        raise ValueError(
            f"leading dimensions do not broadcast: {name} {tuple(lags.shape)}, batch {tuple(batch)}"
        ) from None

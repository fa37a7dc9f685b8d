"""Backward passes that keep their precision inside an autocast context."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def without_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A Function's ``backward`` with autocast off: it would mix types in the sums."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, grad: torch.Tensor | None, *others: Any) -> Any:
        if grad is None:  # nothing depends on the result
            return (None,) * len(ctx.needs_input_grad)
        with torch.autocast(grad.device.type, enabled=False):
            return backward(ctx, grad, *others)

    return wrapped

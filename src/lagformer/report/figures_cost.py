"""What attention costs: time and memory against the length T, measured here and now."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lagformer.attention import linear_attention, relative_linear_attention
from lagformer.report.style import BLACK, BLUE, GREEN, RED, legend_below, new_figure

HEAD_DIM = 32
SHORT_TABLE = 32  # R: lags to either side

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""q, k, v (T, d) and lags (M, d)."""


@dataclass(frozen=True)
class Form:
    """A form of attention: its name, the lags it has on either side, and how it is computed."""

    name: str
    max_lag: Callable[[int], int]
    attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    longest: int
    """The last T measured: a square matrix must still fit."""


def explicit_softmax(
    q: Float[Tensor, "T d"], k: Float[Tensor, "T d"], v: Float[Tensor, "T c"]
) -> Float[Tensor, "T c"]:
    """softmax(QKᵀ/√d) V as it is written: the T × T matrix is there."""
    return (q / math.sqrt(q.shape[-1]) @ k.T).softmax(dim=-1) @ v


FORMS = (
    Form("softmax(QKᵀ/√d) V", lambda T: 0, lambda q, k, v, r: explicit_softmax(q, k, v), 2048),
    Form(
        "relative, all 2T - 1 lags (FFT)",
        lambda T: T - 1,
        lambda q, k, v, r: relative_linear_attention(q, k, v, r, method="fft"),
        16384,
    ),
    Form(
        f"relative, {2 * SHORT_TABLE + 1} lags (band)",
        lambda T: SHORT_TABLE,
        lambda q, k, v, r: relative_linear_attention(q, k, v, r, method="band"),
        16384,
    ),
    Form("linear", lambda T: 0, lambda q, k, v, r: linear_attention(q, k, v), 16384),
)
LENGTHS = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)


@dataclass(frozen=True)
class Cost:
    """One measurement."""

    form: str
    T: int
    seconds: float
    peak_bytes: int


def measure(
    lengths: Sequence[int] = LENGTHS, *, seed: int = 0, seconds: float = 0.15
) -> list[Cost]:
    """Forward pass of every form at every length: one head, float32, one thread, no gradients.

    Time is the least of at least three calls within about `seconds`: what the machine's other
    work adds is never negative. Memory is `peak_bytes`. The number of threads is put back.
    """
    generator = torch.Generator().manual_seed(seed)
    # Once a block of this size was freed, glibc keeps freed memory: without it, middling sizes
    # alone would pay for fresh pages at every call.
    torch.empty(31 * 2**20, dtype=torch.uint8)
    costs = []
    with _one_thread(), torch.no_grad():
        for T in lengths:
            q, k, v = (torch.randn(T, HEAD_DIM, generator=generator) for _ in "qkv")
            for form in FORMS:
                if form.longest < T:
                    continue
                r = torch.randn(2 * form.max_lag(T) + 1, HEAD_DIM, generator=generator)
                inputs = (q, k, v, r)
                peak = peak_bytes(form.attend, inputs)
                costs.append(Cost(form.name, T, _least_time(form.attend, inputs, seconds), peak))
    return costs


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _least_time(function: Callable[..., Tensor], inputs: Inputs, seconds: float) -> float:
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        began = time.perf_counter()
        function(*inputs)
        times.append(time.perf_counter() - began)
    return min(times)


def peak_bytes(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> int:
    """Most bytes held at once by tensors that `function(*inputs)` makes, its result included.

    Every tensor an operation returns is counted from then until its storage is freed: an exact
    figure, the same on every run. Scratch space inside a single operation is not seen.
    """
    with _PeakMemory(inputs) as memory:
        function(*inputs)
    peak: int = memory.peak
    return peak


class _PeakMemory(TorchDispatchMode):
    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = [t.untyped_storage() for t in inputs]  # held, so that no id is reused
        self.held = {id(storage): 0 for storage in self.inputs}
        self.now = self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if id(storage) not in self.held:
            self.held[id(storage)] = storage.nbytes()
            self.now += storage.nbytes()
            weakref.finalize(storage, self._remove, id(storage))

    def _remove(self, key: int) -> None:
        self.now -= self.held.pop(key)


def exponent(lengths: Sequence[float], costs: Sequence[float]) -> float:
    """p of the power law cost ∝ T^p that fits best on log axes, over the upper half of the lengths.

    Short lengths are left out: there the cost of a call that does nothing hides the law.
    """
    start = len(lengths) // 2
    slope, _ = np.polyfit(np.log(lengths[start:]), np.log(costs[start:]), 1)
    return float(slope)


def cost_figure(costs: Sequence[Cost]) -> Figure:
    """Time and memory against T on log axes, fitted exponents in the legend."""
    figure, (left, right) = new_figure(
        "Cost of attention against the length T",
        f"One head, d = {HEAD_DIM}, float32, forward pass, one CPU thread. Time: least of at "
        "least three calls. Memory: most bytes held at once by tensors made on the way, result "
        "included. Exponents: fitted over the longer half of each form's lengths. Theory: T² for "
        "softmax, T log T for the FFT, T for the others; measured times rise faster where the data "
        "outgrow a cache and more slowly where the fixed cost of a call still shows.",
        columns=2,
        height=5.2,
    )
    styles = (
        (RED, "o", "-"),
        (GREEN, "s", "-."),
        (BLUE, "^", "--"),
        (BLACK, "D", ":"),
    )
    for form, (color, marker, dash) in zip(FORMS, styles, strict=True):
        own = [cost for cost in costs if cost.form == form.name]
        lengths = [cost.T for cost in own]
        for panel, values in (
            (left, [1e3 * cost.seconds for cost in own]),
            (right, [cost.peak_bytes / 2**20 for cost in own]),
        ):
            label = f"{form.name}: $T^{{{exponent(lengths, values):.2f}}}$"
            panel.loglog(lengths, values, color=color, marker=marker, linestyle=dash, label=label)
    left.set(title="Time", xlabel="length T (tokens)", ylabel="time of a forward pass (ms)")
    right.set(title="Memory", xlabel="length T (tokens)", ylabel="peak of tensors held (MiB)")
    for panel in (left, right):
        panel.grid(alpha=0.3)
        legend_below(panel)
    return figure

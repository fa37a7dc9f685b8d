"""Time and memory of attention, ours and others', in one run: ``lagformer bench attention``.

Everything a section compares is timed in turn, round after round, so that a ratio is of times taken
side by side; the median over the rounds is written. No speed is printed for a path whose result
differs from the dense definition. Writes attention.csv and attention.png.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor

from lagformer.attention import (
    RelativeLinearAttention,
    linear_attention,
    reference,
    relative_linear_attention,
)
from lagformer.report.figures_cost import peak_bytes as tensor_bytes
from peers import EAGER, LITERAL, SDPA, SDPA_BIAS, Path, installed_peers

HERE = FilePath(__file__).parent
FIELDS = ["section", "path", "B", "H", "T", "d", "threads", "device", "pass", "seconds"]
FIELDS += ["ours_is_faster_by", "value", "unit"]
RELATIVE_SHAPES = [(64, 4, 50, 16), (16, 4, 500, 16), (4, 4, 2000, 16), (1, 4, 8000, 16)]


class Bench:
    """Collects rows; one generator makes all inputs."""

    def __init__(self, device: str, seconds: float) -> None:
        self.device, self.seconds = device, seconds
        self.generator = torch.Generator().manual_seed(0)
        self.rows: list[dict[str, Any]] = []

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device)

    def check(self, path: Path, inputs: list[Tensor], rows: int = 2000) -> None:
        """Refuse a path that is not what it says, on a prefix the dense definition can afford."""
        T = min(inputs[0].shape[-2], rows)
        cut = [x[:1, :, :T].double() for x in inputs[:3]]
        for extra in inputs[3:]:
            middle = extra.shape[-2] // 2
            square = extra.shape[-1] == extra.shape[-2]  # a T×T bias, not a table of lags
            table = extra[:, :T, :T] if square else extra[:, middle - T + 1 : middle + T]
            cut.append(table.double())
        with torch.no_grad():
            got, exact = path.run(*[x.float() for x in cut]), path.exact(*cut)
        error = float((got - exact).abs().max() / exact.abs().max())
        if not error < 1e-4:
            raise SystemExit(
                f"{path.name}: off by {error:.1e} from its definition; no speed for it"
            )

    def compare(self, section: str, paths: list[tuple[Path, list[Tensor]]], first: str) -> None:
        """Time the paths in turn, forward and forward+backward; ``first`` is ours."""
        B, H, T, d = paths[0][1][0].shape
        for path, inputs in paths:
            self.check(path, inputs)
            for x in inputs:
                x.requires_grad_()
        grads = [self.randn(*path.run(*inputs).shape) for path, inputs in paths]
        times: dict[tuple[str, str], list[float]] = {}
        start, rounds = time.perf_counter(), 0
        while rounds < 3 or (time.perf_counter() - start < self.seconds and rounds < 200):
            for (path, inputs), grad in zip(paths, grads, strict=True):
                forward, both = self.once(path.run, inputs, grad)
                if rounds:  # the first round warms up
                    times.setdefault((path.name, "forward"), []).append(forward)
                    times.setdefault((path.name, "forward+backward"), []).append(both)
            rounds += 1
        for what in ("forward", "forward+backward"):
            ours = median(times[first, what])
            for path, _ in paths:
                seconds = median(times[path.name, what])
                self.add(section, path.name, (B, H, T, d), what, seconds, faster=seconds / ours)

    def once(
        self, run: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor
    ) -> tuple[float, float]:
        for x in inputs:
            x.grad = None
        self.wait()
        start = time.perf_counter()
        out = run(*inputs)
        self.wait()
        middle = time.perf_counter()
        out.backward(grad)
        self.wait()
        return middle - start, time.perf_counter() - start

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def add(
        self,
        section: str,
        path: str,
        shape: tuple[int, ...],
        what: str,
        seconds: float | None = None,
        faster: float | None = None,
        value: float | None = None,
        unit: str = "",
    ) -> None:
        numbers = (seconds, faster, value)
        seconds_, faster_, value_ = ("" if x is None else f"{x:.6g}" for x in numbers)
        row = dict(zip("BHTd", shape, strict=True)) | {"section": section, "path": path}
        row |= {"threads": torch.get_num_threads(), "device": self.device, "pass": what}
        row |= {"seconds": seconds_, "ours_is_faster_by": faster_, "value": value_, "unit": unit}
        self.rows.append(row)
        size = "x".join(map(str, shape))
        timed = "" if seconds is None else f"{seconds * 1e3:10.2f} ms"
        ratio = "" if faster is None else f"  ours x{faster:.2f}"
        extra = "" if value is None else f"  {value:.4g} {unit}"
        print(f"{section:12} {size:16} {what:17} {path:34}{timed}{ratio}{extra}", flush=True)


def median(values: list[float]) -> float:
    """Middle value (the upper of two)."""
    return sorted(values)[len(values) // 2]


def ours(name: str, **options: Any) -> Path:
    """relative_linear_attention with these options."""

    def run(q: Tensor, k: Tensor, v: Tensor, lags: Tensor) -> Tensor:
        return relative_linear_attention(q, k, v, lags, **options)

    def exact(q: Tensor, k: Tensor, v: Tensor, lags: Tensor) -> Tensor:
        causal = options.get("causal", False)
        return reference.relative_linear_attention(q, k, v, lags, causal=causal)

    return Path(name, run, exact)


def linear(name: str, **options: Any) -> Path:
    """linear_attention with these options."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_attention(q, k, v, **options)

    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        causal = options.get("causal", False)
        phi = options.get("feature_map", "elu+1")
        return reference.linear_attention(q, k, v, causal=causal, feature_map=phi)

    return Path(name, run, exact)


def relative(bench: Bench) -> None:
    """Ours against the literal formula and SDPA with a learned bias; every method by itself."""
    for B, H, T, d in RELATIVE_SHAPES:
        qkv = [bench.randn(B, H, T, d) for _ in range(3)]
        lags, bias = bench.randn(H, 2 * T - 1, d), bench.randn(H, T, T)
        paths = [(ours("lagformer"), [*qkv, lags]), (SDPA_BIAS, [*qkv, bias])]
        if T <= 2000:
            paths.append((LITERAL, [*qkv, lags]))
        for method in ("block", "fft"):
            paths.append((ours(f"lagformer {method}", method=method), [*qkv, lags]))
        bench.compare("relative", paths, "lagformer")


def plain(bench: Bench) -> None:
    """Without positions, against SDPA, the first formula one writes, and other packages."""
    qkv = [bench.randn(1, 8, 4096, 64) for _ in range(3)]
    paths = [(linear("lagformer"), qkv), (EAGER, qkv), (SDPA, qkv)]
    paths += [(p, qkv) for p in installed_peers(False) if not p.name.startswith("taylor")]
    bench.compare("plain", paths, "lagformer")
    small = [bench.randn(1, 8, 4096, 16) for _ in range(3)]
    paths = [(linear("lagformer taylor2", feature_map="taylor2"), small)]
    paths += [(p, small) for p in installed_peers(False) if p.name.startswith("taylor")]
    bench.compare("taylor2", paths, "lagformer taylor2")


def causal(bench: Bench) -> None:
    """Causal, against pytorch-fast-transformers' C++ kernel."""
    for T in (1024, 4096, 16384):
        qkv = [bench.randn(1, 8, T, 64) for _ in range(3)]
        paths = [(linear("lagformer", causal=True), qkv)]
        bench.compare("causal", paths + [(p, qkv) for p in installed_peers(True)], "lagformer")


def growth(bench: Bench) -> None:
    """Forward+backward time from T = 4k to 256k, and the exponent of its growth."""
    from numpy import log, polyfit

    lengths = [4096, 16384, 65536, 262144]
    forms: dict[str, tuple[Path, int, int]] = {
        "plain": (linear("plain"), 0, 64),
        "causal": (linear("causal", causal=True), 0, 64),
        "band": (ours("band", method="band"), 128, 16),
        "fft": (ours("fft", method="fft"), -1, 16),
    }
    for name, (path, R, d) in forms.items():
        seconds = []
        for T in lengths:
            inputs = [bench.randn(1, 1, T, d) for _ in range(3)]
            if R:
                inputs.append(bench.randn(1, 2 * (R if R > 0 else T - 1) + 1, d))
            for x in inputs:
                x.requires_grad_()
            grad = bench.randn(1, 1, T, d)
            rounds = [bench.once(path.run, inputs, grad)[1] for _ in range(4)]
            seconds.append(median(rounds[1:]))
            bench.add("growth", name, (1, 1, T, d), "forward+backward", seconds[-1])
        slope = float(polyfit(log(lengths), log(seconds), 1)[0])
        bench.add("growth", name, (1, 1, 0, d), "forward+backward", value=slope, unit="exponent")


def limits(bench: Bench) -> None:
    """Share of what the arithmetic at the measured GEMM rate plus the bytes at copy rate allow."""
    square = bench.randn(1024, 1024)
    gemm = 2 * 1024**3 / best(bench, lambda: square @ square)
    source, target = bench.randn(2**24), bench.randn(2**24)
    copied = 8 * 2**24 / best(bench, lambda: target.copy_(source))
    bench.add("limit", "GEMM 1024", (1, 1, 1024, 1024), "forward", value=gemm / 1e9, unit="GFLOP/s")
    bench.add("limit", "copy 64 MiB", (1, 1, 2**24, 1), "forward", value=copied / 1e9, unit="GB/s")
    T, H, d = 4096, 8, 64
    qkv = [bench.randn(1, H, T, d) for _ in range(3)]
    # φ(K)ᵀV and φ(Q)(…); q, k, v read, the output written.
    ideal = 4 * H * T * d * d / gemm + 4 * 4 * H * T * d / copied
    taken = best(bench, lambda: linear_attention(*qkv))
    bench.add("limit", "plain", (1, H, T, d), "forward", taken, value=ideal / taken, unit="share")
    B, H, d = 4, 4, 16
    qkv = [bench.randn(B, H, T, d) for _ in range(3)]
    lags = bench.randn(H, 2 * T - 1, d)
    # φ(q)φ(r)ᵀ and its product with v for every pair, and the content kernel.
    flops = 4 * B * H * T * T * d + 4 * B * H * T * d * d
    ideal = flops / gemm + 4 * 4 * B * H * T * d / copied
    taken = best(bench, lambda: relative_linear_attention(*qkv, lags, method="block"), rounds=5)
    bench.add("limit", "block", (B, H, T, d), "forward", taken, value=ideal / taken, unit="share")


def best(bench: Bench, run: Callable[[], Any], rounds: int = 30) -> float:
    """Median seconds of a call without gradients."""
    times = []
    with torch.no_grad():
        for _ in range(rounds + 2):
            bench.wait()
            start = time.perf_counter()
            run()
            bench.wait()
            times.append(time.perf_counter() - start)
    return median(times[2:])


def epoch(bench: Bench) -> None:
    """A training step of the `olympiad` model on batches of FordA's shape, ours and literal."""
    from lagformer import Lagformer, LagformerConfig
    from lagformer.attention import modules

    def literal(q: Tensor, k: Tensor, v: Tensor, lags: Tensor, **_: Any) -> Tensor:
        return LITERAL.run(q, k, v, lags)

    config = LagformerConfig.preset("olympiad", series_length=500)
    model = Lagformer(config).to(bench.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = bench.randn(64, 1, 500)
    target = torch.arange(64, device=bench.device) % 2

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()

    own, times = modules.relative_linear_attention, {"lagformer": [], "literal FFT formula": []}
    for _ in range(6):
        for name, attend in (("lagformer", own), ("literal FFT formula", literal)):
            modules.relative_linear_attention = attend
            start = time.perf_counter()
            step()
            bench.wait()
            times[name].append(57 * (time.perf_counter() - start))
    modules.relative_linear_attention = own
    ours_takes = median(times["lagformer"][1:])
    for name, seconds in times.items():
        taken = median(seconds[1:])
        bench.add("epoch", name, (64, 4, 50, 16), "57 steps", taken, faster=taken / ours_takes)


def streaming(bench: Bench) -> None:
    """Cost of one step early and late in a stream."""
    module = RelativeLinearAttention(64, 4, 16, max_lag=128, causal=True).to(bench.device)
    state = module.initial_state(1)
    x = bench.randn(1, 1, 64)
    seconds: list[float] = []
    with torch.no_grad():
        for _ in range(101_000):
            start = time.perf_counter()
            _, state = module.step(x, state)
            seconds.append(time.perf_counter() - start)
    early, late = median(seconds[1000:2000]), median(seconds[100_000:])
    bench.add("streaming", "step 1k", (1, 4, 1000, 16), "forward", early)
    bench.add(
        "streaming", "step 100k", (1, 4, 100_000, 16), "forward", late, value=late / early,
        unit="of step 1k",
    )  # fmt: skip


MEMORY = [
    ("literal", 4, 4, 2000, 16, 0, True),
    ("auto", 4, 4, 2000, 16, 0, True),
    ("block", 4, 4, 2000, 16, 0, True),
    ("auto", 1, 1, 1_000_000, 64, 128, False),
]


def memory(bench: Bench) -> None:
    """Peak memory of one call in a process of its own: of tensors, and as the system counts it."""
    tensors = {}
    for case in MEMORY:
        done = subprocess.run(
            [sys.executable, __file__, "--memory", json.dumps(case)],
            check=True,
            capture_output=True,
            text=True,
        )
        measured = json.loads(done.stdout.splitlines()[-1])
        path, B, H, T, d, R, backward = case
        what, shape = "forward+backward" if backward else "forward", (B, H, T, d)
        name = f"{path} R={R}" if R else path
        for unit, value in zip(("of tensors", "more resident", "resident"), measured, strict=True):
            bench.add("memory", name, shape, what, value=value / 2**20, unit=f"MiB {unit}")
        tensors[path, T] = measured[0]
    for path in ("auto", "block"):
        ratio = tensors["literal", 2000] / tensors[path, 2000]
        name = f"literal over {path}"
        bench.add("memory", name, (4, 4, 2000, 16), "forward+backward", value=ratio, unit="ratio")


def measure_memory(case: list[Any]) -> None:
    """The child's part of ``memory``."""
    path, B, H, T, d, R, backward = case
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(B, H, T, d, generator=generator) for _ in range(3)]
    inputs.append(torch.randn(H, 2 * (R or T - 1) + 1, d, generator=generator))
    small = [x[..., :9, :].clone().requires_grad_(backward) for x in inputs]
    run = LITERAL.run if path == "literal" else ours(path, method=path).run
    once = run(*small[:3], inputs[3][:, :17].clone())
    if backward:  # libraries load and threads start before the count does
        once.sum().backward()
    for x in inputs:
        x.requires_grad_(backward)
    gc.collect()
    before = peak_bytes()
    call(run, inputs, backward)
    after = peak_bytes()
    alive = 0 if T > 100_000 else tensor_bytes(lambda *x: call(run, list(x), backward), inputs)
    print(json.dumps([alive, after - before, after]))


def call(run: Callable[..., Tensor], inputs: list[Tensor], backward: bool) -> Tensor:
    """Forward, and backward if asked for."""
    for x in inputs:
        x.grad = None
    out = run(*inputs)
    if backward:
        out.sum().backward()
    return out


def peak_bytes() -> int:
    """Highest resident memory of this process so far (getrusage would count the parent's)."""
    status = FilePath("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def plot(rows: list[dict[str, Any]], file: FilePath) -> None:
    """Forward+backward time against length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    names = {"plain": "linear, d = 64", "causal": "causal, d = 64"}
    names |= {"band": "relative, R = 128, d = 16", "fft": "relative, full table, d = 16"}
    colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]
    for (key, label), colour in zip(names.items(), colours, strict=True):
        chosen = [r for r in rows if r["section"] == "growth" and r["path"] == key]
        points = [(r["T"], float(r["seconds"])) for r in chosen if r["seconds"]]
        slope = next((float(r["value"]) for r in chosen if r["unit"] == "exponent"), None)
        if points and slope is not None:
            axes.loglog(
                *zip(*points, strict=True), "o-", color=colour, label=f"{label}: T^{slope:.2f}"
            )
    axes.set(
        title="Attention over one head: time grows with the length, not its square",
        xlabel="length T (tokens)",
        ylabel="forward + backward (seconds)",
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=130)


SECTIONS = {
    f.__name__: f for f in (relative, epoch, plain, causal, growth, limits, streaming, memory)
}
# Threads each section runs with; its bars are stated for these.
THREADS = {"relative": 1, "epoch": 1, "limits": 1, "streaming": 1}


def main(arguments: list[str] | None = None) -> None:
    """Parse, run the sections, write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sections", default=",".join(SECTIONS), help="some of them, by comma")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=10, help="for each comparison")
    parser.add_argument("--out", type=FilePath, default=HERE / "results")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.memory:
        measure_memory(json.loads(options.memory))
        return
    wanted = options.sections.split(",")
    unknown = set(wanted) - set(SECTIONS)
    if unknown:
        known = ", ".join(SECTIONS)
        print(
            f"error: unknown section {', '.join(sorted(unknown))}; known: {known}", file=sys.stderr
        )
        raise SystemExit(2)
    bench = Bench(options.device, options.seconds)
    cores = torch.get_num_threads()
    for name in wanted:
        torch.set_num_threads(THREADS.get(name, cores))
        SECTIONS[name](bench)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = "attention" if options.device == "cpu" else f"attention_{options.device}"
    with (options.out / f"{stem}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(bench.rows)
    if "growth" in wanted:
        plot(bench.rows, options.out / f"{stem}.png")
    print(f"written: {options.out / stem}.csv")


if __name__ == "__main__":
    main()

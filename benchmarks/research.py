"""Trials behind the preset `base`: one model on one split of a training set.

The test sets are never opened: a trial fits on 80 % of the training set of FordA (dithered) or
FordB and is scored on the rest. docs/research.md says what was found.

python benchmarks/research.py NAME SPLIT [KEY=VALUE ...] [--folder runs/research]
python benchmarks/research.py --table [--out CSV]

Keys are the fields of `Trial`; a trial that is finished is not run again.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

from lagformer.attention import RelativeLinearAttention
from lagformer.data import load_ucr
from lagformer.data.augment import dither

RESULTS = Path(__file__).parent / "results" / "research.csv"


@dataclass(frozen=True)
class Trial:
    """What a trial can vary."""

    data: str = "dithered"
    epochs: int = 40
    lr: float = 1e-3
    wd: float = 0.05
    # the network
    stem: str = "patch"
    patch: int = 10
    k: int = 40
    """Samples that an overlapping patch sees."""
    F: int = 32
    """Filters, in all or per dilation."""
    k1: int = 15
    """Taps of the first filter."""
    stride: int = 2
    dim: int = 64
    blocks: int = 3
    drop: float = 0.1
    # the data
    flip: int = 0
    rev: int = 0
    mixup: float = 0.0
    noise: float = 0.0
    coloured: float = 0.0
    half: int = 0
    """1: the level of the coloured noise is 0 for half of the series; 0: the square of uniform."""
    eq: float = 0.0
    warp: float = 0.0
    renorm: int = 0
    ema: float = 0.0


class CircularConv(nn.Module):
    def __init__(
        self, i: int, o: int, k: int, stride: int = 1, dilation: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(i, o, k, stride=stride, dilation=dilation, bias=bias)
        self.extra = (k - 1) * dilation + 1 - stride

    def forward(self, x: Tensor) -> Tensor:
        left = self.extra // 2
        if self.extra > 0:
            x = F.pad(x, (left, self.extra - left), mode="circular")
        out: Tensor = self.conv(x)
        return out


class Stem(nn.Module):
    def __init__(self, t: Trial) -> None:
        super().__init__()
        D, P, K = t.dim, t.patch, t.F
        self.kind, self.pool = t.stem, P // t.stride
        if t.stem == "patch":
            self.net: nn.Module = nn.Conv1d(1, D, P, stride=P)
        elif t.stem == "overlap":
            self.net = CircularConv(1, D, t.k, P)
        elif t.stem == "conv3":
            self.net = nn.Sequential(
                CircularConv(1, K, t.k1, 2),
                nn.BatchNorm1d(K),
                nn.GELU(),
                CircularConv(K, K, 9, 2),
                nn.BatchNorm1d(K),
                nn.GELU(),
                CircularConv(K, D, P // 2, P // 4),
            )
        elif t.stem in ("multi", "multi2", "multiact"):
            self.banks = nn.ModuleList(CircularConv(1, K // 4, k, 4) for k in (9, 17, 33, 65))
            self.mid = CircularConv(K, K, t.k1) if t.stem == "multi2" else None
            width = 2 * K if t.stem == "multiact" else K
            self.out: nn.Module = CircularConv(width, D, P // 2, P // 4)
        elif t.stem == "power":
            self.linear = CircularConv(1, D, 2 * P, P)
            self.pair = nn.ModuleList(CircularConv(1, K, t.k1, 2, bias=False) for _ in range(2))
            self.out = nn.Linear(K, D)
        elif t.stem == "hydra":
            self.banks = nn.ModuleList(
                CircularConv(1, K, 9, t.stride, d, bias=False) for d in (1, 2, 4, 8, 16)
            )
            self.sharpness = nn.Parameter(torch.zeros(5, 1, 1))
            self.out = nn.Linear(10 * K, D)
            self.linear = CircularConv(1, D, t.k, P)
        else:
            raise ValueError(f"unknown stem {t.stem!r}")

    def forward(self, x: Tensor) -> Tensor:
        if self.kind in ("multi", "multi2", "multiact"):
            h = torch.cat([bank(x) for bank in self.banks], dim=1)
            h = F.gelu(torch.cat([h, -h], dim=1) if self.kind == "multiact" else h)
            if self.mid is not None:
                h = h + F.gelu(self.mid(h))
            tokens = self.out(h)
        elif self.kind == "power":
            power = self.pair[0](x).square() + self.pair[1](x).square()
            root = (F.avg_pool1d(power, self.pool, self.pool) + 1e-3).sqrt()
            tokens = self.linear(x) + self.out(root.transpose(1, 2)).transpose(1, 2)
        elif self.kind == "hydra":
            found = []
            for bank, log_sharpness in zip(self.banks, self.sharpness, strict=True):
                h = bank(x).unflatten(1, (-1, 8))
                share = (4 * log_sharpness.exp() * h).softmax(dim=2)
                found += [(share * h).flatten(1, 2), share.flatten(1, 2)]
            mean = F.avg_pool1d(torch.cat(found, dim=1), self.pool, self.pool)
            tokens = self.linear(x) + self.out(mean.transpose(1, 2)).transpose(1, 2)
        else:
            tokens = self.net(x)
        return tokens.transpose(1, 2)


class Block(nn.Module):
    def __init__(self, t: Trial, tokens: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(t.dim) for _ in range(2))
        self.attention = RelativeLinearAttention(t.dim, 4, 16, max_lag=tokens - 1)
        self.mlp = nn.Sequential(
            nn.Linear(t.dim, 2 * t.dim), nn.GELU(), nn.Linear(2 * t.dim, t.dim)
        )
        self.dropout = nn.Dropout(t.drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norms[0](x)))
        x = x + self.dropout(self.mlp(self.norms[1](x)))
        return x


class Network(nn.Module):
    def __init__(self, t: Trial, length: int) -> None:
        super().__init__()
        self.stem = Stem(t)
        self.blocks = nn.ModuleList(Block(t, -(-length // t.patch)) for _ in range(t.blocks))
        self.norm, self.head = nn.LayerNorm(t.dim), nn.Linear(t.dim, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x.mean(dim=1)))
        return logits


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True).clamp(min=1e-6)


def coloured_noise(shape: torch.Size, generator: torch.Generator) -> Tensor:
    n, _, L = shape
    spectrum = torch.fft.rfft(torch.randn(shape, generator=generator))
    frequency = torch.linspace(0, 1, spectrum.shape[-1])
    centre = torch.rand(n, 1, 1, generator=generator) * 0.25
    width = 0.01 + torch.rand(n, 1, 1, generator=generator) * 0.25
    noise = torch.fft.irfft(spectrum * torch.exp(-0.5 * ((frequency - centre) / width) ** 2), n=L)
    return noise / noise.std(-1, keepdim=True)


def augmented(x: Tensor, t: Trial, generator: torch.Generator) -> Tensor:
    n, _, L = x.shape

    def uniform() -> Tensor:
        return torch.rand(n, 1, 1, generator=generator)

    if t.warp:  # another speed, from a random moment on
        speed = 1 + (2 * uniform()[:, 0] - 1) * t.warp
        time_ = (torch.arange(L) * speed + uniform()[:, 0] * L) % L
        index = time_.floor().long()
        low, high = (x.gather(-1, (i % L)[:, None]) for i in (index, index + 1))
        x = low + (high - low) * (time_ - index)[:, None]
    else:
        start = torch.randint(0, L, (n, 1), generator=generator)
        x = x.gather(-1, ((torch.arange(L)[None] - start) % L)[:, None])
    x = x * (0.8 + 0.4 * uniform())
    if t.flip:
        x = torch.where(uniform() < 0.5, x, -x)
    if t.rev:
        x = torch.where(uniform() < 0.5, x, x.flip(-1))
    if t.eq:  # a smooth random gain in decibels over the band of the signal
        spectrum = torch.fft.rfft(x)
        nodes = torch.randn(n, 1, 9, generator=generator) * t.eq
        band = F.interpolate(nodes, size=65, mode="linear", align_corners=True)
        rest = band[..., -1:].expand(n, 1, spectrum.shape[-1] - 65)
        x = torch.fft.irfft(spectrum * 10 ** (torch.cat([band, rest], -1) / 20), n=L)
    if t.noise:
        x = x + torch.randn(x.shape, generator=generator) * t.noise
    if t.coloured:
        level = (2 * uniform() - 1).clamp(min=0) if t.half else uniform() ** 2
        x = x + coloured_noise(x.shape, generator) * level * t.coloured
    return standardised(x) if t.renorm else x


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    return torch.cat([model(part) for part in x.split(256)]).softmax(dim=1)


def rotated(model: nn.Module, x: Tensor) -> Tensor:
    """Mean over four rotations and both signs."""
    views = [s * x.roll(128 * i, -1) for i in range(4) for s in (1, -1)]
    return torch.stack([probabilities(model, view) for view in views]).mean(dim=0)


def split(data: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    train, _ = load_ucr("FordB" if data == "fordb" else "FordA")
    assert train.labels is not None
    values = train.values
    if data == "dithered":
        values = dither(values, np.random.default_rng(0))
    x = torch.from_numpy(values.astype(np.float32))
    y = torch.from_numpy(np.searchsorted(np.unique(train.labels), train.labels))
    fit, held_out = train_test_split(np.arange(len(y)), test_size=0.2, random_state=seed)
    return x[fit], y[fit], x[held_out], y[held_out]


def fit(
    model: nn.Module,
    X: Tensor,
    Y: Tensor,
    t: Any,
    augment: Callable[[Tensor, Any, torch.Generator], Tensor],
    generator: torch.Generator,
    label_smoothing: float = 0.05,
) -> nn.Module:
    """Train the model and return it with averaged weights; `t` has epochs, lr, wd, mixup, ema."""
    averaged = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=t.lr, weight_decay=t.wd, fused=True)
    steps = math.ceil(len(Y) / 64) * t.epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=t.lr, total_steps=steps)
    step = 0
    for _ in range(t.epochs):
        model.train()
        for index in torch.randperm(len(Y), generator=generator).split(64):
            if len(index) < 8:  # too few for batch norm
                schedule.step()
                continue
            x, target = augment(X[index], t, generator), F.one_hot(Y[index], 2).float()
            if t.mixup:
                share = float(np.random.default_rng(step).beta(t.mixup, t.mixup))
                other = torch.randperm(len(index), generator=generator)
                x = share * x + (1 - share) * x[other]
                target = share * target + (1 - share) * target[other]
            F.cross_entropy(model(x), target, label_smoothing=label_smoothing).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            kept = min(t.ema, (1 + step) / (10 + step))
            with torch.no_grad():
                states = zip(
                    averaged.state_dict().values(), model.state_dict().values(), strict=True
                )
                for a, b in states:
                    if a.dtype.is_floating_point:
                        a.lerp_(b, 1 - kept)
                    else:
                        a.copy_(b)
    return averaged


def scored(model: nn.Module, V: Tensor, W: Tensor) -> tuple[dict[str, float], Tensor]:
    """Return the scores, plain and with noise added, and the probabilities without."""
    noise = torch.Generator().manual_seed(9)
    views = {
        "macro_f1": V,
        "white_noise": standardised(V + 0.5 * torch.randn(V.shape, generator=noise)),
        "coloured_noise": standardised(V + 0.7 * coloured_noise(V.shape, noise)),
    }
    found = {name: probabilities(model, x) for name, x in views.items()}
    scores = {name: macro_f1(p, W) for name, p in found.items()}
    plain = found["macro_f1"]
    return scores | {"nll": float(F.nll_loss(plain.log(), W))}, plain


def macro_f1(probability: Tensor, targets: Tensor) -> float:
    return float(f1_score(targets, probability.argmax(dim=1), average="macro"))


def run(t: Trial, seed: int) -> dict[str, Any]:
    """Train and score one model."""
    X, Y, V, W = split(t.data, seed)
    torch.manual_seed(1000 + seed)
    model = Network(t, X.shape[-1])
    began = time.process_time()
    model = fit(model, X, Y, t, augmented, torch.Generator().manual_seed(seed))
    scores, plain = scored(model, V, W)
    return {
        **scores,
        "rotated": macro_f1(rotated(model, V), W),
        "errors": np.flatnonzero((plain.argmax(1) != W).numpy()).tolist(),
        "cpu_seconds": time.process_time() - began,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def table(folder: Path, out: Path, columns: Sequence[str]) -> None:
    """Write all finished trials as one CSV."""
    rows = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def command_line(
    doc: str | None,
    defaults: Any,
    run: Callable[[Any, int], dict[str, Any]],
    part: str,
    scores: Sequence[str],
    results: Path,
) -> None:
    """Read NAME, the parts to hold out and KEY=VALUE; run what is not there, or write the table."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?")
    parser.add_argument("parts", nargs="?", default="", metavar=f"{part}[,{part} …]")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--folder", type=Path, default=Path("runs") / results.stem)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=results)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.table:
        columns = ["name", part, *scores, "cpu_seconds", "parameters", "settings"]
        table(arguments.folder, arguments.out, columns)
        return
    types = {f.name: type(getattr(defaults, f.name)) for f in fields(defaults)}
    changes: dict[str, Any] = {}
    for text in arguments.settings:
        key, _, value = text.partition("=")
        if key not in types:
            parser.error(f"unknown setting {key!r}; known: {', '.join(types)}")
        changes[key] = types[key](value)
    trial = replace(defaults, **changes)
    changed = [f"{k}={v}" for k, v in asdict(trial).items() if v != getattr(defaults, k)]
    if not arguments.parts:
        parser.error(f"give a name and the {part}s to hold out, or --table")
    for number in map(int, arguments.parts.split(",")):
        path = arguments.folder / f"{arguments.name}-{number}.json"
        if path.exists():
            continue
        found = {
            k: round(v, 4) if isinstance(v, float) else v for k, v in run(trial, number).items()
        }
        row = {"name": arguments.name, part: number, **found, "settings": " ".join(changed)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(row), "utf-8")
        shown = {key: value for key, value in row.items() if key not in ("errors", "settings")}
        print(shown, flush=True)


if __name__ == "__main__":
    scores = ("macro_f1", "rotated", "nll", "white_noise", "coloured_noise")
    command_line(__doc__, Trial(), run, "split", scores, RESULTS)

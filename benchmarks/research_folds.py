"""Second round of trials behind the preset `base`: five folds of a training set.

The test sets are never opened: FordA (dithered) or FordB's training set is cut into five folds,
stratified, seed 0; a trial trains on four and is scored on the fifth. docs/research.md says what
was found.

python benchmarks/research_folds.py NAME FOLDS [KEY=VALUE ...] [--folder runs/research_folds]
python benchmarks/research_folds.py --table [--out CSV]

FOLDS is 0,1,2,3,4 or a part of it; keys are the fields of `Trial`. A fold that is finished is not
run again. `peer=hydra` and `peer=minirocket` score aeon's classifiers.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn
from torch.nn import functional as F

from lagformer.attention import LinearAttention, ToeplitzLinearAttention
from lagformer.data import load_ucr
from lagformer.data.augment import dither
from lagformer.peers import fit_peer
from research import Block, CircularConv, coloured_noise, command_line, fit, scored
from research import Trial as Sizes

RESULTS = Path(__file__).parent / "results" / "research_folds.csv"
LENGTHS = (9, 17, 33, 65)


@dataclass(frozen=True)
class Trial:
    """What a trial can vary."""

    data: str = "dithered"
    peer: str = ""
    epochs: int = 15
    lr: float = 2e-3
    wd: float = 0.05
    # the network
    stem: str = "multi"
    """hydra: competing filters; multi: convolutions; fft: log power of windows; or a sum: a+b."""
    patch: int = 20
    F: int = 64
    """Filters: in all for multi, per dilation for hydra."""
    nconv: int = 2
    kc: int = 9
    separable: int = 0
    norm: str = "ln"
    stride: int = 4
    diff: int = 0
    """1: multi sees first differences too; half of hydra's filters start as differences."""
    stdz: int = 0
    """1: hydra's descriptions are standardised by their means over training series."""
    blocks: int = 2
    attention: str = "relative"
    """Or toeplitz (a weight for each lag), or linear (no positions at all)."""
    drop: float = 0.2
    stemdrop: float = 0.0
    head: str = "ln"
    # the data
    mixup: float = 0.2
    coloured: float = 0.3
    share: float = 0.5
    """Part of the series that gets coloured noise."""
    perm: int = 0
    """1: each series is cut into four pieces that change places."""
    ema: float = 0.998
    ls: float = 0.05


class OverChannels(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return out


def normaliser(t: Trial) -> nn.Module:
    return nn.BatchNorm1d(t.F) if t.norm == "bn" else OverChannels(t.F)


class Residual(nn.Module):
    def __init__(self, t: Trial) -> None:
        super().__init__()
        self.norm, self.drop = normaliser(t), nn.Dropout(t.stemdrop)
        self.conv: nn.Module = CircularConv(t.F, t.F, t.kc)
        if t.separable:
            own = CircularConv(t.F, t.F, t.kc)
            own.conv = nn.Conv1d(t.F, t.F, t.kc, groups=t.F)
            self.conv = nn.Sequential(own, nn.Conv1d(t.F, t.F, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(F.gelu(self.conv(self.norm(x))))


class Multi(nn.Module):
    """Filters of four lengths, then residual convolutions."""

    def __init__(self, t: Trial, D: int) -> None:
        super().__init__()
        width = t.patch // t.stride
        self.banks = nn.ModuleList(CircularConv(1 + t.diff, t.F // 4, k, t.stride) for k in LENGTHS)
        self.norm = normaliser(t)
        self.mid = nn.Sequential(*(Residual(t) for _ in range(t.nconv)))
        self.out = CircularConv(t.F, D, 2 * width, width)
        self.register_buffer("deviation", torch.ones(()))
        self.diff = t.diff

    def calibrate(self, x: Tensor) -> None:
        self.deviation = x.diff(dim=-1).std()

    def forward(self, x: Tensor) -> Tensor:
        if self.diff:
            x = torch.cat([x, (x.roll(-1, -1) - x) / self.deviation], dim=1)
        h = torch.cat([bank(x) for bank in self.banks], dim=1)
        out: Tensor = self.out(self.mid(F.gelu(self.norm(h))))
        return out


class Hydra(nn.Module):
    """Filters that compete in groups of 8, and an overlapping patch."""

    def __init__(self, t: Trial, D: int) -> None:
        super().__init__()
        self.pool, self.stdz = t.patch // t.stride, t.stdz
        self.banks = nn.ModuleList(
            CircularConv(1, t.F, 9, t.stride, d, bias=False) for d in (1, 2, 4, 8, 16)
        )
        with torch.no_grad():
            for bank in self.banks:
                w = torch.randn_like(bank.conv.weight)
                if t.diff:
                    w[: t.F // 2, :, 1:] = w[: t.F // 2, :, 1:] - w[: t.F // 2, :, :-1]
                bank.conv.weight.copy_(w - w.mean(dim=-1, keepdim=True))
        self.sharpness = nn.Parameter(torch.full((5,), math.log(2.0)))
        self.out, self.linear = nn.Linear(10 * t.F, D), CircularConv(1, D, 2 * t.patch, t.patch)
        self.register_buffer("mean", torch.zeros(10 * t.F, 1))
        self.register_buffer("deviation", torch.ones(10 * t.F, 1))

    def calibrate(self, x: Tensor) -> None:
        for bank in self.banks:
            bank.conv.weight /= bank(x).square().mean().sqrt()
        if self.stdz:
            means = torch.cat([self.described(part).mean(dim=-1) for part in x.split(64)])
            self.mean = means.mean(dim=0)[:, None]
            self.deviation = means.std(dim=0)[:, None].clamp(min=1e-6)

    def described(self, x: Tensor) -> Tensor:
        found = []
        for bank, log_sharpness in zip(self.banks, self.sharpness, strict=True):
            h = bank(x).unflatten(1, (-1, 8))
            share = (h * log_sharpness.exp()).softmax(dim=2)
            found += [(share * h).flatten(1, 2), share.flatten(1, 2)]
        mean = F.avg_pool1d(torch.cat(found, dim=1), self.pool, self.pool)
        return (mean - self.mean) / self.deviation

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.described(x).transpose(1, 2)).transpose(1, 2)
        return out + self.linear(x)


class Spectrum(nn.Module):
    """Log power of Hann windows of 100 samples, and an overlapping patch."""

    def __init__(self, t: Trial, D: int) -> None:
        super().__init__()
        self.patch = t.patch
        self.out = nn.Sequential(nn.Linear(26, 128), nn.GELU(), nn.Linear(128, D))
        self.linear = CircularConv(1, D, 2 * t.patch, t.patch)

    def calibrate(self, x: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        windows = F.pad(x, (40, 40), mode="circular")[:, 0].unfold(-1, 100, self.patch)
        power = torch.fft.rfft(windows * torch.hann_window(100))[..., 1:27].abs().square() / 100
        out: Tensor = self.out((power + 1e-2).log()).transpose(1, 2)
        return out + self.linear(x)


KINDS = {"multi": Multi, "hydra": Hydra, "fft": Spectrum}


class Network(nn.Module):
    def __init__(self, t: Trial, length: int) -> None:
        super().__init__()
        sizes = replace(Sizes(), patch=t.patch, drop=t.drop)
        D = sizes.dim
        self.stems = nn.ModuleList(KINDS[kind](t, D) for kind in t.stem.split("+"))
        T = -(-length // t.patch)
        self.blocks = nn.ModuleList(Block(sizes, T) for _ in range(t.blocks))
        for block in self.blocks:
            if t.attention == "toeplitz":
                block.attention = ToeplitzLinearAttention(D, 4, 16, max_lag=T - 1)
            elif t.attention == "linear":
                block.attention = LinearAttention(D, 4, 16)
        self.norm: nn.Module = nn.BatchNorm1d(D) if t.head == "bn" else nn.LayerNorm(D)
        self.head = nn.Linear(D, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.stack([stem(x) for stem in self.stems]).sum(dim=0).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(self.norm(tokens.mean(dim=1)))
        return logits


def augmented(x: Tensor, t: Trial, generator: torch.Generator) -> Tensor:
    n, _, L = x.shape

    def uniform() -> Tensor:
        return torch.rand(n, 1, 1, generator=generator)

    if t.perm:
        cuts = torch.randint(0, L, (n, 3), generator=generator).sort(dim=1).values
        index = []
        for cut in cuts:
            pieces = np.split(np.arange(L), cut.tolist())
            order = torch.randperm(4, generator=generator).tolist()
            index.append(np.concatenate([pieces[i] for i in order]))
        x = x.gather(-1, torch.from_numpy(np.stack(index))[:, None])
    start = torch.randint(0, L, (n, 1), generator=generator)
    x = x.gather(-1, ((torch.arange(L)[None] - start) % L)[:, None])
    x = x * (0.8 + 0.4 * uniform())
    if t.coloured:
        level = ((uniform() - 1 + t.share) / t.share).clamp(min=0) * t.coloured
        noise = coloured_noise(x.shape, generator)
        x = (x + noise * level) / (1 + level**2).sqrt()
    return x


def load(data: str) -> tuple[Tensor, Tensor, list[Any]]:
    train, _ = load_ucr("FordB" if data == "fordb" else "FordA")
    assert train.labels is not None
    values = train.values
    if data == "dithered":
        values = dither(values, np.random.default_rng(0))
    y = np.searchsorted(np.unique(train.labels), train.labels)
    folds = StratifiedKFold(5, shuffle=True, random_state=0).split(np.zeros(len(y)), y)
    return torch.from_numpy(values.astype(np.float32)), torch.from_numpy(y), list(folds)


def train(t: Trial, X: Tensor, Y: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(1000 + seed)
    model = Network(t, X.shape[-1])
    with torch.no_grad():
        for stem in model.stems:
            stem.calibrate(X[::6])
    return fit(model, X, Y, t, augmented, torch.Generator().manual_seed(seed), t.ls)


def run(t: Trial, fold: int) -> dict[str, Any]:
    """Train on four folds and score the fifth, plain and with noise added."""
    X, Y, folds = load(t.data)
    fit_on, held_out = folds[fold]
    began, V, W = time.process_time(), X[held_out], Y[held_out]
    if t.peer:
        peer = fit_peer(t.peer, 0, Y[fit_on].numpy(), X[fit_on].numpy(), V.numpy())
        score = f1_score(W, peer.predicted, average="macro")
        return {"macro_f1": score, "cpu_seconds": time.process_time() - began}
    model = train(t, X[fit_on], Y[fit_on], fold)
    seconds = time.process_time() - began
    return {
        **scored(model, V, W)[0],
        "cpu_seconds": seconds,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


if __name__ == "__main__":
    scores = ("macro_f1", "nll", "white_noise", "coloured_noise")
    command_line(__doc__, Trial(), run, "fold", scores, RESULTS)

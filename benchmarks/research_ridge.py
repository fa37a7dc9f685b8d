"""What makes Hydra good on FordA: a ridge regression on random competing filters, five folds.

The test set is never opened (`research_folds.py` has the folds). One line per setting:

python benchmarks/research_ridge.py [KEY=VALUE,KEY=VALUE …] …

for example `groups=8 groups=32,diff=0 groups=32,stride=4 groups=32,below=64`. A simplification of
Hydra (Dempster, Schmidt and Webb 2023): groups of 8 filters of 9 taps for each dilation, on the
series and on its differences; how much each filter wins by, and how often it loses.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifierCV
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional as F

from research_folds import load

DEFAULTS = {
    "groups": 32,
    "stride": 1,
    "dilations": 6,
    "raw": 1,
    "diff": 1,
    "wins": 1,
    "losses": 1,
    "circular": 0,
    "below": 0,
}


def features(x: Tensor, s: dict[str, int]) -> Tensor:
    """Return the features of series (n, 1, L)."""
    generator = torch.Generator().manual_seed(0)
    if s["below"]:  # the Fourier bins below this one alone
        spectrum = torch.fft.rfft(x)
        spectrum[..., s["below"] :] = 0
        x = torch.fft.irfft(spectrum, n=x.shape[-1])
    found = []
    for series in [x] * s["raw"] + [x.diff(dim=-1)] * s["diff"]:
        for dilation in (2**i for i in range(s["dilations"])):
            filters = torch.randn(8 * s["groups"], 1, 9, generator=generator)
            filters -= filters.mean(dim=-1, keepdim=True)
            filters /= filters.abs().sum(dim=-1, keepdim=True)
            mode = "circular" if s["circular"] else "constant"
            padded = F.pad(series, (4 * dilation, 4 * dilation), mode=mode)
            rows = []
            for part in padded.split(256):
                h = F.conv1d(part, filters, dilation=dilation, stride=s["stride"])
                h = h.unflatten(1, (-1, 8))
                best, worst = h.max(dim=2, keepdim=True), h.min(dim=2, keepdim=True)
                won = torch.zeros_like(h).scatter_(2, best.indices, best.values).sum(dim=-1)
                lost = torch.zeros_like(h).scatter_(2, worst.indices, 1.0).sum(dim=-1)
                rows.append(torch.cat([won] * s["wins"] + [lost] * s["losses"], dim=1).flatten(1))
            found.append(torch.cat(rows))
    together = torch.cat(found, dim=1)
    return together.sign() * together.abs().sqrt()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=[""])
    texts = parser.parse_args().settings
    settings: list[dict[str, Any]] = [
        dict(pair.partition("=")[::2] for pair in text.split(",") if pair) for text in texts
    ]
    if unknown := {key for pairs in settings for key in pairs} - DEFAULTS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(DEFAULTS)}")
    torch.set_num_threads(1)
    X, Y, folds = load("dithered")
    y = Y.numpy()
    for text, pairs in zip(texts, settings, strict=True):
        Z = features(X, DEFAULTS | {key: int(value) for key, value in pairs.items()}).numpy()
        scores = []
        for fit, held_out in folds:
            model = make_pipeline(StandardScaler(), RidgeClassifierCV(np.logspace(0, 5, 11)))
            predicted = model.fit(Z[fit], y[fit]).predict(Z[held_out])
            scores.append(f1_score(y[held_out], predicted, average="macro"))
        print(f"{text or 'defaults':30} {Z.shape[1]:5} {np.mean(scores):.4f}", np.round(scores, 4))


if __name__ == "__main__":
    main()

"""Third round of trials behind the preset `base`: the transformer, the wide readout, and both.

The test sets are never opened. `base` is trained on parts of a training set and scored on the rest,
its two halves apart and blended in several shares.

python benchmarks/research_wide.py dithered,fordb 0,1,2,3,4
python benchmarks/research_wide.py Adiac,CricketX 0,1,2,3
python benchmarks/research_wide.py --table [--out CSV]

FordA (dithered) and FordB are cut into the five folds of `research_folds.py` and scored plain and
with noise added; their readout is solved with the recipe's noise and without. Other UCR sets are
cut into four folds. A fold that is finished is not run again.
"""

from __future__ import annotations

import argparse
import csv
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from lagformer import LagformerClassifier
from lagformer.data import load_ucr
from lagformer.model import Lagformer, LagformerConfig
from lagformer.training.loop import Examples, fit, new_model, solve_wide
from lagformer.training.recipe import Recipe
from research import coloured_noise, standardised
from research_folds import load

RESULTS = Path(__file__).parent / "results" / "research_wide.csv"
SHARES = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)  # of the readout; 0: the transformer alone


@torch.no_grad()
def halves(model: Lagformer, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the transformer and of the wide readout."""
    assert model.wide is not None
    model.eval()
    wide, model.wide = model.wide, None
    parts = range(0, len(x), 128)
    masks = [None if mask is None else mask[i : i + 128] for i in parts]
    transformer = torch.cat([model(x[i : i + 128], m) for i, m in zip(parts, masks, strict=True)])
    model.wide = wide
    return transformer.log_softmax(1), wide(x, mask).log_softmax(1)


def ford(data: str, fold: int) -> list[dict[str, object]]:
    """Macro F1 on a fold of FordA or FordB."""
    X, Y, folds = load(data)
    fit_on, held_out = folds[fold]
    X = (X - X[fit_on].mean()) / X[fit_on].std()
    recipe = Recipe.preset("base")
    examples, V, y = Examples(X[fit_on], Y[fit_on]), X[held_out], Y[held_out].numpy()
    config = LagformerConfig.preset("base", series_length=X.shape[-1])
    model = new_model(config, examples, fold)
    fit(model, examples, recipe, seed=fold)
    noise = torch.Generator().manual_seed(9)
    views = {
        "plain": V,
        "white": standardised(V + 0.5 * torch.randn(V.shape, generator=noise)),
        "coloured": standardised(V + 0.7 * coloured_noise(V.shape, noise)),
    }
    rows: list[dict[str, object]] = []
    for level in (recipe.coloured_noise, 0.0):
        solve_wide(model, examples, replace(recipe, coloured_noise=level), fold)
        for view, x in views.items():
            transformer, wide = halves(model, x)
            answers = [((1 - s) * transformer + s * wide).argmax(1).numpy() for s in SHARES]
            scores = [round(float(f1_score(y, answer, average="macro")), 4) for answer in answers]
            row = {"data": data, "fold": fold, "readout_noise": level, "view": view}
            rows.append(row | {f"share_{s}": v for s, v in zip(SHARES, scores, strict=True)})
    return rows


def aligned(name: str, fold: int) -> list[dict[str, object]]:
    """Accuracy on a fold of another UCR set."""
    train, _ = load_ucr(name)
    assert train.labels is not None
    classes, y = np.unique(train.labels, return_inverse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes of fewer than four series
        cut = list(StratifiedKFold(4, shuffle=True, random_state=0).split(np.zeros(len(y)), y))
    fit_on, held_out = cut[fold]
    model = LagformerClassifier(random_state=fold, device="cpu").fit(train.subset(fit_on))
    transformer, wide = halves(model.model_, *model._tensors(train.subset(held_out)))
    known = np.searchsorted(classes, model.classes_)
    level = model.config_["coloured_noise"]
    row: dict[str, object] = {"data": name, "fold": fold, "readout_noise": level, "view": "plain"}
    for share in SHARES:
        answer = known[((1 - share) * transformer + share * wide).argmax(1).numpy()]
        row[f"share_{share}"] = round(float(accuracy_score(y[held_out], answer)), 4)
    return [row]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", default="")
    parser.add_argument("folds", nargs="?", default="")
    parser.add_argument("--folder", type=Path, default=Path("runs/research_wide"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    for fold in map(int, filter(None, options.folds.split(","))):
        for data in filter(None, options.data.split(",")):
            path = options.folder / f"{data}-{fold}.json"
            if not path.exists():
                rows = ford(data, fold) if data in ("dithered", "fordb") else aligned(data, fold)
                path.write_text(json.dumps(rows), "utf-8")
            for row in json.loads(path.read_text("utf-8")):
                print(*row.values(), flush=True)
    if options.table:
        rows = [
            row
            for path in sorted(options.folder.glob("*.json"))
            for row in json.loads(path.read_text("utf-8"))
        ]
        with options.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

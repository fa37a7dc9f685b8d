"""Trials behind the preset `base` on UCR sets whose series are aligned in time.

Half of a training set fits, the other half is scored; test sets are never opened.

python benchmarks/research_sets.py NAME SET[,SET …] [KEY=VALUE …] [--folder runs/research_sets]

Keys: steps, and fields of `Recipe` or `LagformerConfig`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split

from lagformer.data import load_ucr
from lagformer.model import LagformerConfig
from lagformer.training.loop import Examples, fit, new_model, predict_logits
from lagformer.training.recipe import Recipe


def run(name: str, settings: dict[str, Any]) -> dict[str, float]:
    """Train on half of a training set and score the other half."""
    train, _ = load_ucr(name)
    assert train.labels is not None
    values = (train.values - train.values.mean()) / train.values.std()
    x = torch.from_numpy(values.astype(np.float32))
    y = torch.from_numpy(np.searchsorted(np.unique(train.labels), train.labels))
    fit_on, held_out = train_test_split(
        np.arange(len(y)), test_size=0.5, random_state=0, stratify=y
    )
    sizes = {f.name: settings[f.name] for f in fields(LagformerConfig) if f.name in settings}
    changes = {f.name: settings[f.name] for f in fields(Recipe) if f.name in settings}
    config = LagformerConfig.preset(
        settings.get("preset", "base"),
        series_length=x.shape[-1],
        in_channels=x.shape[1],
        num_classes=int(y.max()) + 1,
    )
    batch = min(64, max(8, len(fit_on) // 10))
    epochs = max(1, round(settings.get("steps", 1500) / -(-len(fit_on) // batch)))
    plain = {"shift": False, "coloured_noise": 0.0, "epochs": epochs, "batch_size": batch}
    recipe = Recipe.preset("base", **(plain | changes))
    began = time.process_time()
    examples = Examples(x[fit_on], y[fit_on])
    model = new_model(replace(config, **sizes), examples, seed=0)
    history = fit(model, examples, recipe, seed=0)
    accuracy = float((predict_logits(model, x[held_out]).argmax(1) == y[held_out]).float().mean())
    return {
        "accuracy": round(accuracy, 4),
        "train_loss": round(history[-1]["train_loss"], 4),
        "cpu_seconds": round(time.process_time() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("sets")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path("runs/research_sets"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings: dict[str, Any] = {}
    for text in arguments.settings:
        key, value = text.split("=", 1)
        settings[key] = value if key == "preset" else json.loads(value)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.sets.split(","):
        path = arguments.folder / f"{arguments.name}-{name}.json"
        if not path.exists():
            path.write_text(json.dumps(run(name, settings)), "utf-8")
        print(arguments.name, name, path.read_text("utf-8"), flush=True)


if __name__ == "__main__":
    main()

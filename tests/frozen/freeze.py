"""Save tiny models, and what they predict, under tests/frozen/VERSION; what is there stays.

python tests/frozen/freeze.py
"""

from pathlib import Path

import numpy as np
import torch

from lagformer import LagformerClassifier, __version__
from lagformer.model import PRESETS
from lagformer.training.recipe import RECIPES

PRESETS["tiny"] = {
    "patch_length": 4,
    "embed_dim": 8,
    "num_heads": 2,
    "head_dim": 4,
    "num_blocks": 1,
    "mlp_dim": 8,
}
PRESETS["tiny-filters"] = PRESETS["tiny"] | {
    "stem": "kernels",
    "num_kernels": 8,
    "num_dilations": 2,
    "stem_stride": 2,
}
PRESETS["tiny-convolutions"] = PRESETS["tiny"] | {
    "stem": "convolutions",
    "num_kernels": 8,
    "num_layers": 1,
    "stem_stride": 2,
}
PRESETS["tiny-wide"] = PRESETS["tiny-convolutions"] | {"wide_groups": 1}
RECIPES["tiny"] = {}
RECIPES["tiny-filters"] = RECIPES["tiny-convolutions"] = RECIPES["tiny-wide"] = RECIPES["base"]


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    targets = np.arange(12) % 3
    phase = 6 * rng.random((12, 2, 1))
    X = np.sin((0.3 + 0.4 * targets[:, None, None]) * np.arange(22) + phase).round(3)
    home = Path(__file__).parent / __version__
    for name, preset, series, labels, normalize in (
        ("table", "tiny", X[:, 0], 10 * targets - 10, False),
        ("channels", "tiny", X, np.array(["idle", "näher", "Voll"])[targets], True),
        ("filters", "tiny-filters", X, targets, False),
        ("convolutions", "tiny-convolutions", X, targets, False),
        ("wide", "tiny-wide", X, targets, False),
    ):
        if (home / name).exists():
            continue
        model = LagformerClassifier(preset, max_epochs=20, normalize=normalize, random_state=0)
        model.fit(series, labels, validation_data=(series, labels)).save(home / name)
        np.savez(home / f"{name}.npz", X=series, probabilities=model.predict_proba(series))


if __name__ == "__main__":
    main()

"""How a model is trained: the settings, and those of each preset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

# How each preset of the model is trained, where that differs from `Recipe`'s defaults.
_OURS: dict[str, Any] = {  # docs/research.md
    "epochs": 15,
    "learning_rate": 2e-3,
    "coloured_noise": 0.5,
    "averaging": 0.998,
}
RECIPES: dict[str, dict[str, Any]] = {"olympiad": {}, "base": _OURS, "fast": _OURS}

# What that changes where it matters at what time something happens.
_LOCKED: dict[str, Any] = {"epochs": 60, "shift": False, "coloured_noise": 0.0, "mixup": 0.2}
PHASE_LOCKED: dict[str, dict[str, Any]] = {"base": _LOCKED, "fast": _LOCKED}


@dataclass(frozen=True)
class Recipe:
    """How to train; the defaults are the `olympiad` recipe.

    AdamW with a one-cycle learning rate that peaks at `learning_rate`, cross-entropy with label
    smoothing, gradients clipped at norm `clip_norm`; each series is shifted circularly by a random
    amount and multiplied by a factor drawn from `amplitude` (None: left alone). Optional are:
    noise of random colours, up to `coloured_noise` deviations, on a fifth of the series, and mixup
    (Zhang et al. 2018): the batch is blended with a permutation of itself, labels too, in a
    proportion from Beta(`mixup`, `mixup`). With `averaging` > 0 the model scored and kept is the
    moving average of the weights, which holds that share of itself at each step (less in the
    first steps). With `patience`, training ends after that many epochs in a row without a better
    validation score.
    Raises ValueError for values out of range.
    """

    epochs: int = 80
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    label_smoothing: float = 0.05
    clip_norm: float = 1.0
    shift: bool = True
    amplitude: tuple[float, float] | None = (0.8, 1.2)
    coloured_noise: float = 0.0
    mixup: float = 0.0
    averaging: float = 0.0
    patience: int | None = None

    @classmethod
    def preset(cls, name: str, *, phase_locked: bool = False, **changes: Any) -> Self:
        """Return the recipe of the model preset `name`, with `changes`.

        `phase_locked` as in `LagformerConfig.preset`. ValueError for an unknown name or values
        out of range.
        """
        if name not in RECIPES:
            raise ValueError(f"unknown preset {name!r}; known presets: {', '.join(RECIPES)}")
        locked = PHASE_LOCKED.get(name, {}) if phase_locked else {}
        return cls(**(RECIPES[name] | locked | changes))

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer ≥ 1, got {value!r}")
        for name in ("learning_rate", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        for name in ("weight_decay", "coloured_noise", "mixup"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)!r}")
        for name in ("label_smoothing", "averaging"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)!r}")
        patience = self.patience
        if patience is not None and not (isinstance(patience, int) and patience >= 1):
            raise ValueError(f"patience must be None or an integer ≥ 1, got {patience!r}")
        if self.amplitude is not None and not 0 < self.amplitude[0] <= self.amplitude[1]:
            raise ValueError(f"amplitude must be 0 < low ≤ high, got {self.amplitude!r}")

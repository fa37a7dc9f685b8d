"""Lagformer: linear-time attention with relative positions, and the classifier built from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lagformer.classifier import LagformerClassifier
    from lagformer.model import Lagformer, LagformerConfig

__version__ = "0.1.0"
__all__ = ["Lagformer", "LagformerClassifier", "LagformerConfig", "__version__"]

# Where each name lives; imported on first use, so that `lagformer --help` does not wait for torch.
_HOMES = {
    "Lagformer": "lagformer.model",
    "LagformerConfig": "lagformer.model",
    "LagformerClassifier": "lagformer.classifier",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lagformer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

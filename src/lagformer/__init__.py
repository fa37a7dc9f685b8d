"""Lagformer: linear-time attention with relative positions, and the classifier built from it."""

__version__ = "0.1.0"

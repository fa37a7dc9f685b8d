"""Recordings in, one validated ``Collection`` out; the audit and the augmentations."""

from lagformer.data.collection import Collection

__all__ = ["Collection"]

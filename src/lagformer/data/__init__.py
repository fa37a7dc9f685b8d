"""Recordings in, one validated ``Collection`` out; the audit and the augmentations."""

from lagformer.data.collection import Collection
from lagformer.data.readers import iter_windows, read_dataset
from lagformer.data.ucr import available_ucr, load_ucr

__all__ = ["Collection", "available_ucr", "iter_windows", "load_ucr", "read_dataset"]

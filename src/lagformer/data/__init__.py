"""Recordings in, one validated ``Collection`` out; the audit and the augmentations."""

from lagformer.data.audit import AuditReport, Finding, audit
from lagformer.data.augment import (
    amplitude,
    circular_shift,
    coloured_noise,
    dither,
    dither_pair,
)
from lagformer.data.collection import Collection
from lagformer.data.readers import iter_windows, read_dataset
from lagformer.data.ucr import available_ucr, load_ucr

__all__ = [
    "AuditReport",
    "Collection",
    "Finding",
    "amplitude",
    "audit",
    "available_ucr",
    "circular_shift",
    "coloured_noise",
    "dither",
    "dither_pair",
    "iter_windows",
    "load_ucr",
    "read_dataset",
]

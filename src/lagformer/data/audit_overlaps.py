"""Windows cut from one recording so that they overlap: parts of a series are known from another.

Every stretch of a few steps gets a fingerprint that gain and offset do not change: for successive
differences a and b the ratio a / (|a| + |b|), rounded, and the sign of b. Series that share many
fingerprints at one shift are compared over their whole overlap. Files must keep about six digits.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt64

from lagformer.data.audit_report import Finding, FindingVerdict
from lagformer.data.collection import Collection

# Ratios in one fingerprint, and levels of a ratio: about 100 bits for noise.
_RATIOS = 12
_LEVELS = 500
# Steps that one fingerprint covers.
_SPAN = _RATIOS + 2
# Share of a series that must be shared to count, and to make a leak.
_NOTABLE = 0.25
_LEAK = 0.5
# Share of an overlap that must agree; the rest is rounding.
_AGREE = 0.9
_SHOWN = 3

_ODD = np.uint64(0x9E3779B97F4A7C15)
_NONE = np.uint64(0)


def overlaps(train: Collection, test: Collection | None) -> Finding:
    """Look for shifted stretches of one recording in two series.

    Score of ``overlapping_windows``: the share of test series that share a quarter of themselves
    with a training series; without a test split, of training series that do so with an earlier one.
    """
    splits = [train] if test is None else [train, test]
    width = max(split.mask.shape[1] for split in splits)
    prints = np.concatenate([_fingerprints(split, width) for split in splits])
    lengths = np.concatenate([split.lengths for split in splits])
    names = [f"train {name}" for name in train.names]
    names += [f"test {name}" for name in test.names] if test is not None else []

    shared: dict[tuple[int, int], float] = {}
    for i, j, shift in _candidates(prints):
        share = _shared_stretch(prints[i], prints[j], shift, lengths[i], lengths[j]) / lengths[j]
        if share >= _NOTABLE:
            shared[i, j] = max(share, shared.get((i, j), 0.0))
    within = [(i, j) for i, j in shared if j < len(train)]
    across = [(i, j) for i, j in shared if i < len(train) <= j]
    score = len({j for _, j in (across if test is not None else within)}) / len(splits[-1])
    detail = (
        f"{len({j for _, j in within})} training series share a stretch with another one, "
        f"{len({j for _, j in across})} test series with a training series"
    )
    pairs = sorted(across, key=lambda pair: -shared[pair]) or within
    if not pairs:
        return Finding("overlapping_windows", "ok", score, detail)
    detail += ": " + ", ".join(
        f"{names[i]} and {names[j]} {shared[i, j]:.0%}" for i, j in pairs[:_SHOWN]
    )
    verdict: FindingVerdict = "leak" if any(shared[p] >= _LEAK for p in across) else "warn"
    cure = "Split by recording before cutting windows, and keep a recording in one fold."
    return Finding("overlapping_windows", verdict, score, detail, cure)


def _fingerprints(data: Collection, width: int) -> UInt64[np.ndarray, "n F"]:
    """Fingerprint every stretch of a split, as if it had ``width`` steps.

    0 stands where there is none: at missing steps, at constants, and where a series repeats itself,
    as straight lines and pure tones do.
    """
    count = max(width - _SPAN + 1, 0)
    values = np.pad(data.values, ((0, 0), (0, 0), (0, width - data.values.shape[2])))
    mask = np.pad(data.mask, ((0, 0), (0, width - data.mask.shape[1])))
    prints = np.zeros((len(data), count), dtype=np.uint64)
    known = np.ones((len(data), count), dtype=bool)
    for k in range(_SPAN):
        known &= mask[:, k : k + count]
    for c in range(values.shape[1]):
        steps = np.diff(values[:, c], axis=1)
        size = np.abs(steps[:, :-1]) + np.abs(steps[:, 1:])
        moving = size > 0
        ratio = np.divide(steps[:, :-1], size, out=np.zeros_like(size), where=moving)
        level = np.round(_LEVELS / 2 * ratio).astype(np.int64) * 2 + (steps[:, 1:] > 0)
        for k in range(_RATIOS):
            prints = (prints ^ level[:, k : k + count].astype(np.uint64)) * _ODD
            prints ^= prints >> np.uint64(29)
            known &= moving[:, k : k + count]
    order = np.argsort(prints, axis=1)
    ranked = np.take_along_axis(prints, order, axis=1)
    twin = ranked[:, 1:] == ranked[:, :-1]
    repeated = np.zeros_like(known)
    repeated[:, 1:] |= twin
    repeated[:, :-1] |= twin
    np.put_along_axis(known, order, np.take_along_axis(known, order, axis=1) & ~repeated, axis=1)
    return np.where(known, prints, _NONE)


def _candidates(prints: UInt64[np.ndarray, "n F"]) -> list[tuple[int, int, int]]:
    """List (i, j, shift) with i < j whose fingerprints often agree at positions t and t + shift."""
    count = prints.shape[1]
    flat = np.flatnonzero(prints)
    _, first, group = np.unique(prints.flat[flat], return_index=True, return_inverse=True)
    here, there = flat, flat[first[group]]
    i, j = there // max(count, 1), here // max(count, 1)
    shift = here % max(count, 1) - there % max(count, 1)
    other = (i < j) & (shift != 0)
    found, times = np.unique(
        np.stack([i[other], j[other], shift[other]], axis=1), axis=0, return_counts=True
    )
    often = times >= max(_NOTABLE / 2 * count, 1)
    return [(int(a), int(b), int(s)) for a, b, s in found[often]]


def _shared_stretch(
    a: UInt64[np.ndarray, " F"],
    b: UInt64[np.ndarray, " F"],
    shift: int,
    length_a: np.int64,
    length_b: np.int64,
) -> int:
    """Return the steps that b at t + shift shares with a at t, 0 unless they agree throughout."""
    start = max(0, -shift)
    stop = int(min(length_a, length_b - shift)) - _SPAN + 1
    if stop <= start:
        return 0
    left, right = a[start:stop], b[start + shift : stop + shift]
    agree = (left == right) & (left != _NONE)
    return stop - start + _SPAN - 1 if agree.mean() >= _AGREE else 0

"""Series that occur more than once, in one split or in both.

Exact repeats agree in every byte. Near repeats are closer than chance allows: taking z-normalised
series as points of intrinsic dimension D, (d_i / d_k)^D of the distances to the i-th and k-th
neighbour is Beta(i, k - i) distributed (the idea of Facco et al., Sci. Rep. 7, 2017). That gives D
from i = 2, and for i = 1 the chance 1 - (1 - e^D)^(k - 1) that the nearest is within e times the
k-th distance. The e used makes this chance 0.05 over all n series together.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import blake2b
from math import log
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from lagformer.data.audit_report import Finding, FindingVerdict
from lagformer.data.collection import Collection

FAMILY_ERROR = 0.05
# k: up to k - 2 near copies of one series are found.
_NEIGHBOURS = 5
# Median of Beta(2, k - 2).
_MEDIAN_BETA = 0.38573
# A near repeat is never farther than this share of its k-th neighbour's distance ...
_MAX_RATIO = 0.1
# ... nor than this root mean square difference, in standard deviations.
_MAX_DISTANCE = 0.1
# A copy with noise 40 dB down and no new recording: the same difference for a near repeat.
_COPY_DISTANCE = 0.01
# Normalised series with fewer values than this are patterns of levels, which can coincide.
_FEW_LEVELS = 10
# Elements of the largest array in a block: 64 MiB of float64.
_BLOCK = 2**23
_SHOWN = 3
# Distances below this are rounding errors of float64.
_TINY = 1e-12

Groups = list[list[int]]
Pairs = list[tuple[int, int]]
NearPairs = list[tuple[int, int, float]]
Pool = Float64[np.ndarray, "n C L"]


def repeats(train: Collection, test: Collection | None) -> list[Finding]:
    """Look for repeated series, and for repeats that carry different labels.

    Scores: the share of the training series that repeat an earlier one (``repeats_in_train``), the
    share of the test series that repeat a training series (``repeats_across_splits``), and the
    number of distinct series that occur with several labels (``label_conflicts``).
    """
    splits = [train] if test is None else [train, test]
    values, mask = _pooled(splits)
    names = [f"train {name}" for name in train.names]
    names += [f"test {name}" for name in test.names] if test is not None else []
    by_content = defaultdict(list)
    for i in range(len(values)):
        by_content[blake2b(values[i].tobytes() + mask[i].tobytes()).digest()].append(i)
    groups = list(by_content.values())
    first = np.array([group[0] for group in groups])
    near = [
        (int(first[i]), int(first[j]), distance)
        for i, j, distance in _near_pairs(values[first], mask[first])
    ]

    findings = [_in_train(groups, near, len(train), names)]
    if test is not None:
        simple = {
            j for g in groups if len(g) > 1 for j in g if _has_few_levels(values[j][:, mask[j]])
        }
        findings.append(_across_splits(groups, near, simple, len(train), names))
    if all(split.labels is not None for split in splits):
        labels = [label for split in splits for label in np.asarray(split.labels).tolist()]
        findings.append(_label_conflicts(groups, labels, names))
    return findings


def _in_train(groups: Groups, near: NearPairs, n_train: int, names: list[str]) -> Finding:
    """Count training series that repeat an earlier training series."""
    exact = [(g[0], j) for g in groups for j in g[1:] if j < n_train]
    close = [(i, j) for i, j, _ in near if j < n_train]
    share = len({j for _, j in exact + close}) / n_train
    detail = f"{len(exact)} exact and {len(close)} near repeats among {n_train} training series"
    detail += _examples(exact + close, names)
    if not share:
        return Finding("repeats_in_train", "ok", share, detail)
    cure = "Keep repeats together when you split for validation, or drop all but one."
    return Finding("repeats_in_train", "warn", share, detail, cure)


def _across_splits(
    groups: Groups, near: NearPairs, simple: set[int], n_train: int, names: list[str]
) -> Finding:
    """Count test series that are in the training split; simple ones can agree by coincidence."""
    n_test = len(names) - n_train
    exact = [(g[0], j) for g in groups for j in g if g[0] < n_train <= j]
    copies = [(i, j) for i, j in exact if j not in simple]
    close = [(i, j, distance) for i, j, distance in near if i < n_train <= j]
    noisy = [(i, j) for i, j, distance in close if distance <= _COPY_DISTANCE]
    similar = [(i, j) for i, j, distance in close if distance > _COPY_DISTANCE]
    share = len({j for _, j in exact + noisy + similar}) / n_test
    detail = (
        f"of {n_test} test series {len(copies)} are exactly in the training split, {len(noisy)} "
        f"within {_COPY_DISTANCE:g} standard deviations, {len(similar)} closer than chance allows; "
        f"{len(exact) - len(copies)} more have few levels and may coincide"
    )
    detail += _examples(copies + noisy + similar or exact, names)
    if not share:
        return Finding("repeats_across_splits", "ok", share, detail)
    cure = "Drop these series from the training split, or split again with repeats together."
    verdict: FindingVerdict = "leak" if copies or noisy else "warn"
    return Finding("repeats_across_splits", verdict, share, detail, cure)


def _label_conflicts(groups: Groups, labels: list[Any], names: list[str]) -> Finding:
    """Count series that occur with more than one label."""
    pairs = [
        (g[0], next(j for j in g if labels[j] != labels[g[0]]))
        for g in groups
        if len({labels[j] for j in g}) > 1
    ]
    detail = f"{len(pairs)} series occur with different labels" + _examples(pairs, names)
    if not pairs:
        return Finding("label_conflicts", "ok", 0.0, detail)
    cure = "Check these labels: no model can get all of them right."
    return Finding("label_conflicts", "warn", float(len(pairs)), detail, cure)


def _examples(pairs: Pairs, names: list[str]) -> str:
    """Name the first few pairs."""
    shown = ", ".join(f"{names[i]} = {names[j]}" for i, j in pairs[:_SHOWN])
    return f": {shown}{', ...' if len(pairs) > _SHOWN else ''}" if pairs else ""


def _pooled(splits: list[Collection]) -> tuple[Pool, Bool[np.ndarray, "n L"]]:
    """Stack the splits, padded to one length."""
    length = max(split.mask.shape[1] for split in splits)
    pads = [(0, length - split.mask.shape[1]) for split in splits]
    values = [np.pad(s.values, ((0, 0), (0, 0), p)) for s, p in zip(splits, pads, strict=True)]
    masks = [np.pad(s.mask, ((0, 0), p)) for s, p in zip(splits, pads, strict=True)]
    return np.concatenate(values), np.concatenate(masks)


def _has_few_levels(x: Float64[np.ndarray, "C L"]) -> bool:
    """Tell series that can coincide, such as the on and off of a switch, from measured ones."""
    return len(np.unique(x)) < min(_FEW_LEVELS, x.size / 2)


def _near_pairs(values: Pool, mask: Bool[np.ndarray, "n L"]) -> NearPairs:
    """Find pairs i < j of distinct series that are closer than chance allows, and how close."""
    points = _unit_vectors(values, mask)
    varying = np.flatnonzero(points.any(axis=1))
    points = points[varying]
    if len(points) <= _NEIGHBOURS:
        return []
    index, distance = _nearest(points)
    # Copies shorten the first distance only, so the dimension is read from the second and the k-th.
    outer, inner = np.maximum(distance[:, [-1, 1]], _TINY).T
    growth = float(np.median(np.log(outer / inner)))
    ratio = _MAX_RATIO
    if growth > 0:
        dimension = -log(_MEDIAN_BETA) / growth
        by_chance = 1 - (1 - FAMILY_ERROR / len(points)) ** (1 / (_NEIGHBOURS - 1))
        ratio = min(ratio, by_chance ** (1 / dimension))
    limit = np.minimum(ratio * distance[:, -1:], _MAX_DISTANCE)
    rows, columns = np.nonzero(distance[:, :-1] <= limit)
    pairs = {}
    for row, column in zip(rows, columns, strict=True):
        i, j = sorted((int(varying[row]), int(varying[index[row, column]])))
        if not any(_has_few_levels(values[k][:, mask[k]]) for k in (i, j)):
            pairs[i, j] = float(distance[row, column])
    return [(i, j, pairs[i, j]) for i, j in sorted(pairs)]


def _unit_vectors(values: Pool, mask: Bool[np.ndarray, "n L"]) -> Float64[np.ndarray, "n CL"]:
    """Centre each channel over its real steps and scale each series to length 1; constants to 0."""
    real = mask[:, None]
    centred = (values - values.mean(axis=2, keepdims=True, where=real)) * real
    flat = centred.reshape(len(values), -1)
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    rounding = np.finfo(np.float64).eps * np.abs(values).max(axis=(1, 2))[:, None] * flat.shape[1]
    unit: Float64[np.ndarray, "n CL"] = np.zeros_like(flat)
    np.divide(flat, norm, out=unit, where=norm > rounding)
    return unit


def _nearest(
    points: Float64[np.ndarray, "n CL"],
) -> tuple[Int64[np.ndarray, "n k"], Float64[np.ndarray, "n k"]]:
    """Find the k nearest other points of each point, nearest first; memory O(n).

    The distance of two unit vectors is the root mean square difference of the two series in units
    of their standard deviation: sqrt(2 - 2 r) for correlation r.
    """
    n, k = len(points), _NEIGHBOURS
    rough = points.astype(np.float32)
    index = np.empty((n, k), dtype=np.int64)
    distance = np.empty((n, k))
    rows = max(1, _BLOCK // max(n, k * points.shape[1]))
    for start in range(0, n, rows):
        block = slice(start, min(start + rows, n))
        dissimilarity = -(rough[block] @ rough.T)
        dissimilarity[np.arange(block.stop - start), np.arange(start, block.stop)] = np.inf
        nearest = np.argpartition(dissimilarity, k - 1, axis=1)[:, :k]
        # float32 only ranks the candidates: 1 - r would lose half its digits for near repeats.
        exact = np.linalg.norm(points[nearest] - points[block, None], axis=2)
        order = np.argsort(exact, axis=1)
        index[block] = np.take_along_axis(nearest, order, axis=1)
        distance[block] = np.take_along_axis(exact, order, axis=1)
    return index, distance

"""The audit: can a score on this data set be believed?"""

from __future__ import annotations

from pathlib import PurePath

import numpy as np

from lagformer.data.audit_overlaps import overlaps
from lagformer.data.audit_repeats import repeats
from lagformer.data.audit_report import AuditReport, Finding
from lagformer.data.audit_separation import separation
from lagformer.data.audit_splits import splits
from lagformer.data.collection import Collection

__all__ = ["AuditReport", "Finding", "audit"]


def audit(train: Collection, test: Collection | None = None, *, seed: int = 0) -> AuditReport:
    """Check a data set for leaks, repeats, drift and other reasons to doubt a score.

    Labels of the test split are looked at only to compare label sets and the labels of repeated
    series; what separates the classes is sought in the training split alone.

    Args:
        train: the training split; without labels only the checks that need none are made.
        test: the test split, if there is one.
        seed: decides folds and noise; the same seed gives the same report.

    Returns:
        The report, named after the file or data set ``train`` came from. Its verdict is ``"leak"``
        if a trivial artefact of the recording tells the classes apart nearly perfectly, or if the
        test split holds training series or the better part of one.

    Raises:
        ValueError: if a split is empty or the two have different numbers of channels.
    """
    both = [train] if test is None else [train, test]
    for name, split in zip(("training", "test"), both, strict=False):
        if not len(split):
            raise ValueError(f"The {name} split holds no series: there is nothing to audit.")
    if test is not None and train.values.shape[1] != test.values.shape[1]:
        raise ValueError(
            f"The training split has {train.values.shape[1]} channels and the test split "
            f"{test.values.shape[1]}: audit splits of one data set."
        )
    # Squares of values near float64's limits overflow; such a statistic separates nothing.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        findings = [
            *separation(train, seed),
            *repeats(train, test),
            overlaps(train, test),
            *splits(train, test),
        ]
    return AuditReport(PurePath(train.source).stem.removesuffix("_TRAIN"), tuple(findings))

"""What an audit says: findings, and the report that holds them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

FindingVerdict = Literal["ok", "warn", "leak"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: name of the check, e.g. ``"distinct_values"``.
        verdict: ``"ok"``, ``"warn"`` (know this before you trust a score) or ``"leak"`` (a score on
            this data measures something other than the task).
        score: what the check measured; its meaning is documented at each check and said in
            ``detail``. Shares and balanced accuracies are in [0, 1].
        detail: one line of evidence.
        cure: one line that says what to do; empty when there is nothing to cure.
    """

    check: str
    verdict: FindingVerdict
    score: float
    detail: str
    cure: str = ""


@dataclass(frozen=True)
class AuditReport:
    """All findings of one audit, in a fixed order of checks."""

    dataset: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Literal["clean", "leak"]:
        """``"leak"`` if any finding is one; warnings leave a data set ``"clean"``."""
        return "leak" if any(f.verdict == "leak" for f in self.findings) else "clean"

    def as_dict(self) -> dict[str, Any]:
        """Return ``{"dataset", "verdict", "findings": [{"check", "verdict", "score", ...}]}``."""
        return {
            "dataset": self.dataset,
            "verdict": self.verdict,
            "findings": [asdict(f) for f in self.findings],
        }

    def to_json(self) -> str:
        """Return :meth:`as_dict` as JSON text."""
        return json.dumps(self.as_dict(), indent=2)

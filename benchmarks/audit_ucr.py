"""Audit every UCR data set at hand; write one row per finding.

python benchmarks/audit_ucr.py [OUTPUT.csv]
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from lagformer.data import audit, available_ucr, load_ucr

RESULTS = Path(__file__).parent / "results" / "audit_ucr.csv"
COLUMNS = ["dataset", "verdict", "check", "finding_verdict", "score", "detail"]


def main(output: Path) -> None:
    names = available_ucr()
    leaks = []
    with output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name in names:
            report = audit(*load_ucr(name))
            warnings = [f.check for f in report.findings if f.verdict == "warn"]
            found = [f.check for f in report.findings if f.verdict == "leak"]
            print(f"{name:30s} {report.verdict:6s} leak: {found}  warn: {warnings}")
            if found:
                leaks.append(name)
            for f in report.findings:
                score = f"{f.score:.4f}"
                writer.writerow([name, report.verdict, f.check, f.verdict, score, f.detail])
    print(f"{len(leaks)} of {len(names)} data sets leak: {', '.join(leaks)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)

"""Figures and pages a person reads."""

from lagformer.report.plots import write_figures

__all__ = ["write_figures"]

"""Figures and pages a person reads."""

"""Settings shared by every test."""

import os

import torch
from hypothesis import HealthCheck, settings

# Two workers on two cores: one thread each, or they fight for the cores.
torch.set_num_threads(1)
os.environ.setdefault("MPLBACKEND", "Agg")

settings.register_profile(
    "lagformer", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("lagformer")

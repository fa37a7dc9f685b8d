"""The command `lagformer`: parses, calls, prints.

What takes long to import is imported inside the commands, so that `--help` answers at once.
"""

# Imported for the commands that they register.
from lagformer.cli import bench, data, export, models, protocol, report  # noqa: F401
from lagformer.cli.app import main

__all__ = ["main"]

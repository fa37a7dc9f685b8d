"""The command `lagformer`: parses, calls, prints.

What takes long to import is imported inside the commands, so that `--help` answers at once.
"""

from lagformer.cli import bench, data, models, protocol, report  # noqa: F401  (they register their commands)
from lagformer.cli.app import main

__all__ = ["main"]

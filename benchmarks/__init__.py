"""kvscope beside its peers and its limits, measured in one go: `python -m benchmarks --help`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

"""Benchmarks of kvscope against its limits, its peers and a real vLLM: `python -m benchmarks`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

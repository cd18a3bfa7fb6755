"""Reuse: who reuses what, whose blocks, and how unevenly."""

from __future__ import annotations

from dashboard import data, render, sidebar
from kvscope.report import reuse

trace = sidebar.trace("Reuse")
found = data.analysis(trace)
render.show(reuse.sections(found.characterization), keep=f"reuse {trace}")

"""Reuse: which requests reuse blocks, whose blocks, and how unevenly."""

from __future__ import annotations

from dashboard import answers, data, render, sidebar
from kvscope.report import reuse

trace = sidebar.page_head("Reuse")
analysis = data.analysis(trace)
render.show(reuse.sections(analysis.characterization), cache_key=f"reuse {trace}")
answers.export_analysis(trace, sidebar.analysis(trace))

"""Reuse: who reuses what, whose blocks, and how unevenly."""

from __future__ import annotations

import frame
import held
import render

from kvscope.report import reuse

trace = frame.trace("Reuse")
found = held.analysis(trace)
render.show(reuse.sections(found.characterization), keep=f"reuse {trace}")

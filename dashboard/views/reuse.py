"""Reuse: who reuses what, whose blocks, and how unevenly."""

from __future__ import annotations

import frame
import held
import render

from kvscope.show.sections import reuse

found = held.analysis(frame.trace("Reuse"))
render.show(reuse.sections(found.characterization))

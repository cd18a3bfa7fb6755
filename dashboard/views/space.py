"""Space: where in the prompt reuse lies, how much is alive at once, which prefixes are hottest."""

from __future__ import annotations

import frame
import held
import render

from kvscope.report import prefixes, space

trace = frame.trace("Space")
model, hbm_bytes = frame.chosen().model, frame.chosen().hbm_bytes
found = held.analysis(trace, model, hbm_bytes)
keep = f"space {trace} {model} {hbm_bytes}"
told = space.sections(found)
render.show(told[:1], keep=keep)
render.show([prefixes.section(held.prefixes(trace), trace.block_size), *told[1:]], keep=keep)

"""Space: where in the prompt reuse lies, how much is alive at once, which prefixes are hottest."""

from __future__ import annotations

from dashboard import data, render, sidebar
from kvscope.report import prefixes, space

trace = sidebar.trace("Space")
model, hbm_bytes = sidebar.chosen().model, sidebar.chosen().hbm_bytes
found = data.analysis(trace, model, hbm_bytes)
keep = f"space {trace} {model} {hbm_bytes}"
told = space.sections(found)
render.show(told[:1], keep=keep)
render.show([prefixes.section(data.prefixes(trace), trace.block_size), *told[1:]], keep=keep)

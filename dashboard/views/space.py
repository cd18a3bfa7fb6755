"""Space: where in the prompt reuse lies, how much is alive at once, which prefixes are hottest."""

from __future__ import annotations

import frame
import held
import render

from kvscope.show.sections import prefixes, space

trace = frame.trace("Space")
found = held.analysis(trace, frame.chosen().model, frame.chosen().hbm_bytes)
where, *rest = space.sections(found) or [None]
if where is not None:
    render.show([where])
render.show([prefixes.section(held.prefixes(trace), trace.block_size), *rest])

"""Space: where in the prompt reuse lies, how much is alive at once, which prefixes are hottest."""

from __future__ import annotations

import frame
import held
import render

from kvscope.show.sections import space

found = held.analysis(frame.trace("Space"), frame.chosen().model, frame.chosen().hbm_bytes)
render.show(space.sections(found))

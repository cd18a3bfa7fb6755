"""Space: where in the prompt reuse lies, the hottest prefixes, the working set, request sizes."""

from __future__ import annotations

from dashboard import answers, background_cache, render, sidebar
from kvscope.report import space

trace, selected = sidebar.page_head("Space"), sidebar.choices()
analysis = sidebar.analysis(trace)
cache_key = f"space {trace} {selected.model} {selected.hbm_bytes} {selected.memory}"
first, *rest = space.sections(analysis)
render.show([first], cache_key=cache_key)  # before the prefixes, which may take longer
hottest = space.hottest_prefixes(background_cache.prefixes(trace), trace.block_size)
render.show([hottest, *rest], cache_key=cache_key)
answers.export_analysis(trace, analysis)

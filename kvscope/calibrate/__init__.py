"""A latency profile of one's own engine: TTFT measured over a grid of token counts, and fitted."""

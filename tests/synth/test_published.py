"""Generated traffic comes out of `analyze` with the published statistics it was made to have.

Tolerances: 4 percentage points for shares, 15 % for times and lengths; where the published figures
contradict each other the profile's docstring says which were kept.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.ingest.pipeline import ingest
from kvscope.show.analysis import Analysis, analyze
from kvscope.store.db import MEMORY, open_store
from kvscope.synth.registry import by_name
from kvscope.synth.write import write_jsonl

POINTS = 0.04
RELATIVE = 0.15


def analyzed(folder: Path, profile: str) -> Analysis:
    """The analysis of 20,000 requests of `profile`."""
    path = folder / f"{profile}.jsonl"
    write_jsonl(by_name(profile).generate(requests=20_000, seed=601), path)
    with open_store(MEMORY) as store:
        return analyze(store, ingest(store, str(path)).trace)


def test_a_chat_product_is_like_trace_a(tmp_path: Path) -> None:
    """Source: Wang et al., KVCache Cache in the Wild (ATC'25), Trace A."""
    analysis = analyzed(tmp_path, "to-c")
    found = analysis.characterization
    assert analysis.caching is not None
    assert analysis.caching.ideal == pytest.approx(0.62, abs=POINTS)
    assert found.contribution.multi_turn_hit_share is not None
    assert found.contribution.multi_turn_hit_share > 0.5
    assert found.turns is not None
    assert (found.turns.turns.p50, found.turns.turns.p90) == (1, 5)
    assert found.reuse_gaps is not None
    assert found.reuse_gaps.overall is not None
    assert found.reuse_gaps.overall.gap_s.p80 == pytest.approx(600, rel=RELATIVE)
    assert found.lifetimes is not None
    assert found.lifetimes.overall is not None
    assert found.lifetimes.overall.lifetime_s.p90 == pytest.approx(612, rel=RELATIVE)
    assert found.skew is not None
    assert found.skew.reuse_from_top_10_percent == pytest.approx(0.77, abs=POINTS)
    assert found.lengths.single_turn_mean_tokens == pytest.approx(973, rel=RELATIVE)
    assert found.lengths.multi_turn_mean_tokens == pytest.approx(5953, rel=RELATIVE)


def test_an_api_is_like_trace_b(tmp_path: Path) -> None:
    """Source: Wang et al., KVCache Cache in the Wild (ATC'25), Trace B."""
    analysis = analyzed(tmp_path, "to-b")
    found = analysis.characterization
    assert analysis.caching is not None
    assert analysis.caching.ideal == pytest.approx(0.54, abs=POINTS)
    assert found.contribution.multi_turn_hit_share is not None
    assert 1 - found.contribution.multi_turn_hit_share == pytest.approx(0.97, abs=POINTS)
    assert found.contribution.multi_turn_request_share < 0.001
    assert found.reuse_gaps is not None
    assert found.reuse_gaps.overall is not None
    assert found.reuse_gaps.overall.gap_s.p80 <= 10
    assert found.skew is not None
    assert found.skew.users is not None
    hits = found.skew.users.share_making_90_percent_of_hits
    assert hits == pytest.approx(0.04, abs=POINTS)

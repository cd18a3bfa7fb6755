"""Generated traffic comes out of `analyze` with the published statistics it was made to have.

Tolerances: 4 percentage points for shares (1.5 for those of a few percent), 15 % for times and
lengths. Where the published figures contradict each other the profile's docstring says which were
kept; what is not met is tested for what it is instead, with the published value beside it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvscope.characterize.lifetimes import Lifetimes
from kvscope.characterize.summary import Characterization
from kvscope.ingest.pipeline import ingest
from kvscope.store.db import MEMORY, open_store
from kvscope.synth.profiles import by_name, write_jsonl
from kvscope.usecases.analyze import Analysis, analyze

POINTS = 0.04
FEW_POINTS = 0.015  # of a share that is a few percent itself
RELATIVE = 0.15


def analyzed(folder: Path, profile: str) -> Analysis:
    """Return the analysis of 12,000 requests of `profile`."""
    path = folder / f"{profile}.jsonl"
    write_jsonl(by_name(profile).generate(requests=12_000, seed=601), path)
    with open_store(MEMORY) as store:
        return analyze(store, ingest(store, str(path)).trace)


@pytest.fixture(scope="module")
def to_c(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Return the analysis of the chat product."""
    return analyzed(tmp_path_factory.mktemp("to-c"), "to-c")


def multi_turn_shares(found: Characterization) -> dict[str, float]:
    """Return the share of later turns in the requests of each type."""
    requests: dict[str, dict[bool, int]] = {}
    for row in found.contribution.rows:
        requests.setdefault(row.type, {False: 0, True: 0})[row.multi_turn] = row.requests
    return {kind: turns[True] / sum(turns.values()) for kind, turns in requests.items()}


def share_within(found: Lifetimes, seconds: float) -> float:
    """Return the share of blocks that live no longer, between the points of the grid."""
    assert found.overall is not None
    return float(np.interp(np.log(seconds), np.log(found.at_s), found.overall.cdf))


def test_a_chat_product_is_like_trace_a(to_c: Analysis) -> None:
    """Source: Wang et al., KVCache Cache in the Wild (ATC'25), Trace A."""
    found = to_c.characterization
    assert to_c.caching is not None
    assert to_c.caching.ideal == pytest.approx(0.62, abs=POINTS)
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
    assert found.skew.users is not None
    hits = found.skew.users.share_making_90_percent_of_hits
    assert hits == pytest.approx(0.19, abs=POINTS)
    requests = found.skew.users.share_making_90_percent_of_requests
    assert requests == pytest.approx(0.72, abs=POINTS)
    assert found.turns.single_turn_share == pytest.approx(0.54, abs=POINTS)


def test_a_chat_product_goes_on_as_far_as_the_figures_agree(to_c: Analysis) -> None:
    """Published: 47-51 % later turns by type, 0.5 and 0.8 for a next turn, up to 232 turns.

    These cannot hold at once; the shares are kept to 6 points, the probabilities give way.
    """
    found = to_c.characterization
    shares = multi_turn_shares(found)
    for kind in ("text", "file", "search"):
        assert 0.47 - 0.06 <= shares[kind] <= 0.51 + 0.06, kind
    assert shares["multimodal"] < min(shares["text"], shares["file"], shares["search"])
    assert found.next_turns is not None
    assert found.next_turns.after_first_turn.settled_probability == pytest.approx(0.46, abs=POINTS)
    assert found.next_turns.after_later_turns.settled_probability == pytest.approx(0.58, abs=POINTS)
    assert found.turns is not None
    assert 50 <= found.turns.turns.max <= 232


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
    assert hits == pytest.approx(0.04, abs=FEW_POINTS)
    requests = found.skew.users.share_making_90_percent_of_requests
    assert requests == pytest.approx(0.15, abs=POINTS)
    # As shares: half a point more or less moves p90 and p99 (0.3 and 97 s) by their own size.
    assert found.lifetimes is not None
    assert share_within(found.lifetimes, 0.3) == pytest.approx(0.90, abs=FEW_POINTS)
    assert share_within(found.lifetimes, 97.0) == pytest.approx(0.99, abs=FEW_POINTS)

"""What `kvscope tune` recommends can be replayed as it was judged; the fit that goes along."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.core.hits import Outputs, standard
from kvscope.core.runs import Tenant
from kvscope.learning.offline.learners import fit_for
from kvscope.learning.returns.file import FittedReturns
from kvscope.policies.base import Policy
from kvscope.policies.gittins import Gittins
from kvscope.policies.tlru import TLru
from kvscope.replay.derived_traces import isolate
from kvscope.replay.traffic import traffic
from kvscope.usecases.tune.recommend import engine_fit
from tests.cli.shell import Streams, streams_of
from tests.cli.tune.asked import DEPLOYED, HERE, document, write_trace
from tests.golden.samples import sample
from tests.tuning.examples import in_turn

SGLANG = (*DEPLOYED[:-1], "5760", "--engine", "sglang")  # it caches single tokens


@pytest.mark.parametrize(
    ("where", "blocks"),
    [(HERE, 350), (DEPLOYED, 359), (SGLANG, 360)],
    ids=["cache", "engine", "tree"],
)
def test_simulate_replays_what_was_recommended(
    options: tuple[str, ...],
    capsys: Streams,
    tmp_path: Path,
    where: tuple[str, ...],
    blocks: int,
) -> None:
    """The same policy, values, capacity and latency, alongside LRU: the figures of the held-out."""
    requests = in_turn()  # SGLang's tlru evicts no part of a prompt that came whole
    turns = [replace(each, input_tokens=160, hash_ids=each.hash_ids[:10]) for each in requests[:20]]
    trace = str(write_trace(tmp_path / "grown.jsonl", [*turns, *requests[20:]]))
    found = document(capsys, trace, *options, "--slo", "200ms", *where)
    best = found["recommendation"]
    asked = ("simulate", trace, "--recommendation", "recommendation.toml", "--json")
    results = json.loads(streams_of(capsys, *asked, *options[:2], "--warmup", "75%").out)["results"]
    assert [one["policy"] for one in results] == ["lru", "tlru"]
    for one, expected in zip(results, (best["baseline"], best["expected"]), strict=True):
        assert one["capacity_blocks"] == blocks
        for name in ("requests", "hit_tokens", "ttft_ms", "queued_ttft_ms", "tel_ms", "violations"):
            assert one[name] == expected[name]
    values = {name: one for name, one in best["params"].items() if name != "xi_ms"}
    assert results[1]["params"] == values


@pytest.mark.parametrize("where", [DEPLOYED, SGLANG], ids=["engine", "tree"])
def test_several_replicas_are_not_replayed_as_one(
    trace: str, options: tuple[str, ...], capsys: Streams, where: tuple[str, ...]
) -> None:
    """A fleet's recommendation is refused by `simulate`, whose trace is one engine's."""
    document(capsys, trace, *options, "--slo", "200ms", *where, "--replicas", "2")
    asked = ("simulate", trace, "--recommendation", "recommendation.toml")
    assert run([*asked, *options[:2]]) == ExitCode.USAGE
    assert "it is for 2 replicas: use kvscope tune" in capsys.readouterr().err


BLOCKS = 1000


@pytest.mark.parametrize("policy", [TLru(), Gittins()], ids=lambda one: one.name)
def test_a_fit_for_the_recommended_capacity(policy: Policy) -> None:
    """As `fit` has it; a table that an engine can fit anew says that it is to."""
    prompts = sample("to-c")
    recommended = SimpleNamespace(policy=policy, capacity_blocks=BLOCKS)
    setting = SimpleNamespace(isolate=None, definition=standard())
    tuned: Any = SimpleNamespace(
        recommended=recommended, tuning=SimpleNamespace(setting=setting), prompts=prompts
    )
    found = engine_fit(tuned)
    expected = fit_for(traffic(prompts, standard()), policy, BLOCKS)
    if isinstance(found, FittedReturns):
        assert found.refits
        assert isinstance(expected, FittedReturns)
        assert found.index.tolist() == expected.index.tolist()
    else:
        assert found == expected
    assert (found is None) == (policy.name == "tlru")


@pytest.mark.parametrize(("by", "outputs"), [("conversation", "carried"), (None, "ignored")])
def test_a_fit_to_what_was_replayed(by: Tenant | None, outputs: Outputs) -> None:
    """Isolated, or without outputs, as the recommendation was judged."""
    prompts, policy = sample("agent"), Gittins()
    recommended = SimpleNamespace(policy=policy, capacity_blocks=BLOCKS)
    setting = SimpleNamespace(isolate=by, definition=standard(outputs=outputs))
    tuned: Any = SimpleNamespace(
        recommended=recommended, tuning=SimpleNamespace(setting=setting), prompts=prompts
    )
    fitted = engine_fit(tuned)
    assert isinstance(fitted, FittedReturns)
    replayed = traffic(isolate(prompts, by) if by else prompts, setting.definition)
    found, whole = fitted.index, fit_for(traffic(prompts, standard()), policy, BLOCKS)
    expected = fit_for(replayed, policy, BLOCKS)
    assert isinstance(expected, FittedReturns)
    assert isinstance(whole, FittedReturns)
    assert found.tolist() == expected.index.tolist()
    assert found.tolist() != whole.index.tolist()

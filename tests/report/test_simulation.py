"""Policies beside each other: names, contests, charts, the page."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from kvscope.app.simulate import Simulation, ordered
from kvscope.characterize.distributions import round_windows
from kvscope.core.hits import standard
from kvscope.core.runs import Run, TierOutcome
from kvscope.deployment.models import resolve_model
from kvscope.ingest.pipeline import ingest
from kvscope.latency.file import load_profile
from kvscope.policies.registry import POLICIES, by_name
from kvscope.replay.policy_options import format_value
from kvscope.replay.settings import run_setting
from kvscope.replay.sweep import make_run
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.report import policies as report
from kvscope.report.policies import tier_sections
from kvscope.report.runs import contest, names, policy_line
from kvscope.report.style import SERIES
from kvscope.store.db import MEMORY, open_store
from kvscope.store.traces import load_prompts
from kvscope.usecases.simulate import USE_CASE

TIERS = (
    TierOutcome("hbm", "lru", 2, 0.0, None, 6, 96, 0.4, 0.0, None, 7),
    TierOutcome("dram", "lru", 2, 0.01, 25e9, 3, 48, 0.2, 6000.0, 4096, 5),
)
HOSTILE = "<img src=x onerror=alert(1)></script><b>&"


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """Three policies, one with two values of a parameter; the trace has a nasty type."""
    path = tmp_path_factory.mktemp("policies") / "hostile.jsonl"
    rows = []
    for at in range(12):
        turn, user = at // 3 + 1, at % 3
        rows.append(
            {
                "chat_id": at,
                "parent_chat_id": at - 3 if turn > 1 else -1,
                "timestamp": at * 10.0,
                "input_length": 32 * turn,
                "output_length": 8,
                "type": HOSTILE,
                "turn": turn,
                "hash_ids": [user * 100 + block for block in range(2 * turn)],
            }
        )
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with open_store(MEMORY) as store:
        trace = ingest(store, str(path)).trace
        setting = run_setting(standard(), load_profile(), slo_s=0.02)
        workload = Workload(load_prompts(store, trace), setting, round_windows(trace, 4))
    tlru = by_name("tlru")
    policies = [by_name("belady")(), tlru({"xi_tokens": 10}), tlru({"xi_tokens": 20})]
    policies += [by_name("lru")()]
    runs = [
        make_run(workload, ReplayRequest(policy, at)) for at in (4, 2, 8) for policy in policies
    ]
    model = resolve_model("llama3-8b")
    return Simulation(trace, model, setting, ordered(runs), workload.curve)


def test_runs_are_ordered_and_named_by_what_differs(simulation: Simulation) -> None:
    """By capacity, then as the registry has them; a star for hindsight; only varying parameters."""
    assert simulation.capacities == [2, 4, 8]
    name = names(simulation.runs)
    assert [name(run) for run in simulation.at(2)] == [
        "lru",
        "tlru xi_tokens=10",
        "tlru xi_tokens=20",
        "belady*",
    ]
    (tlru, *_) = (run for run in simulation.runs if run.policy == "tlru")
    both = [replace(tlru, leaves=leaves) for leaves in ("leaf", "any")]
    assert list(map(names(both), both)) == ["tlru leaves=leaf", "tlru leaves=any"]


def test_hindsight_never_wins(simulation: Simulation) -> None:
    """The best is among those that do not know the future; of equal ones the first; lru is lru."""
    runs = simulation.at(2)
    best = contest(runs, lambda run: -run.outcome.token_hit_rate)
    assert best.best is not None
    assert best.best_known is not None
    assert not best.best.hindsight
    assert best.best_known.policy == "belady"
    assert best.baseline is runs[0]
    assert contest(runs, lambda _: 0.0).best is runs[0]
    none = contest([], lambda _: 0.0)
    assert (none.best, none.baseline, none.best_known) == (None, None, None)


def test_the_first_section_is_the_summary(simulation: Simulation) -> None:
    """Hit rate, p95 and TEL, a row a capacity; TEL only with an SLO."""
    first = report.sections(simulation)[0]
    assert [table.title.split(" ")[0] for table in first.tables] == ["Hit", "p95", "Tail"]
    assert all(len(table.rows) == 3 for table in first.tables)
    without = replace(simulation, setting=replace(simulation.setting, slo_s=None))
    assert len(report.summary(without).tables) == 2


def test_every_table_is_rectangular(simulation: Simulation) -> None:
    """As many cells as columns, whatever is shown: exact, sampled, tiers, an engine, kept."""
    sampled = replace(simulation.setting, sample_rate=0.5)
    runs: tuple[Run, ...] = tuple(
        replace(run, setting=sampled, hit_rate_error=0.01) for run in simulation.runs
    )
    engine = replace(simulation.setting, capacity_model="engine", max_num_seqs=2)
    on_engine = tuple(replace(run, setting=engine, preemptions=1) for run in simulation.runs[:2])
    tiers = replace(engine, tiers="hbm=2blocks,dram=2blocks", tier_mode="vllm@0.33")
    in_tiers = tuple(replace(run, setting=tiers, tiers=TIERS) for run in simulation.runs[:1])
    sections = [
        *report.sections(simulation),
        *report.sections(replace(simulation, setting=sampled, runs=runs)),
        *report.sections(replace(simulation, setting=engine, runs=on_engine, curve=None)),
        *report.sections(replace(simulation, setting=tiers, runs=in_tiers, curve=None)),
        *report.stored(simulation.trace, [*simulation.runs, *runs], simulation.model),
    ]
    tables = [table for section in sections for table in section.tables]
    assert tables
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}, table.title


def test_tiers_have_a_section_of_their_own(simulation: Simulation) -> None:
    """A row a tier with its wait by request; without tiers there is no such section."""
    assert tier_sections(simulation) == []
    run = replace(simulation.runs[0], tiers=TIERS)
    (section,) = tier_sections(replace(simulation, model=None, runs=(run,)))
    requests = run.outcome.requests
    assert requests == 12
    assert section.tables[0].rows == (
        ("lru", "hbm", "2 blocks", "96", "40.0%", "–", "7"),
        ("lru", "dram", "2 blocks", "48", "20.0%", "500", "5"),
    )


def test_the_optimum_has_a_column_where_it_was_replayed(simulation: Simulation) -> None:
    """Without a policy that knows the future nothing is said of what is left."""
    tables = report.summary(simulation).tables
    assert [table.columns[-2:] for table in tables] == [
        ("optimum", "gap"),
        ("best known", "gap"),
        ("best known", "gap"),
    ]
    assert [table.note for table in tables[1:]] == 2 * ["gap: best known minus best policy"]
    blind = tuple(run for run in simulation.runs if not run.hindsight)
    table = report.summary(replace(simulation, runs=blind)).tables[0]
    assert table.columns[-1] == "vs lru"
    assert table.note == ""


@pytest.mark.parametrize("changed", [{"warmup": 0.5}, {"partial": True}, {"weight": "request"}])
def test_belady_is_the_optimum_of_whole_blocks(
    simulation: Simulation, changed: dict[str, Any]
) -> None:
    """Where hits count something else, its run is the best known and no more."""
    definition = replace(simulation.setting.definition, **changed)
    setting = replace(simulation.setting, definition=definition)
    runs = tuple(replace(run, setting=setting) for run in simulation.runs)
    first = report.summary(replace(simulation, setting=setting, runs=runs)).tables[0]
    assert first.columns[-2:] == ("best known", "gap")


def test_the_best_known_is_the_best_of_all(simulation: Simulation) -> None:
    """An oracle that an online policy beats is no bound: the gap to the best known is 0."""
    runs = simulation.at(2)
    beaten = contest(runs, lambda run: float(run.hindsight))
    assert beaten.best_known is beaten.best
    blind = [run for run in runs if not run.hindsight]
    assert contest(blind, lambda run: -run.outcome.token_hit_rate).best_known is None


def test_a_policy_has_one_colour_and_hindsight_is_dashed() -> None:
    """No two policies share colour and dash; dashed lines are those that know the future."""
    lines = {policy.name: policy_line(policy.name) for policy in POLICIES}
    assert len({(line["color"], line["dash"]) for line in lines.values()}) == len(POLICIES)
    for policy in POLICIES:
        assert ("dash" in str(lines[policy.name]["dash"]).split("dashdot")) == policy.hindsight
        assert lines[policy.name]["color"] in SERIES
    assert policy_line("somebody's own")["color"] in SERIES
    usual = ("lru", "gittins", "tlru", "threshold-lru", "wa", "belady", "tail-belady")
    assert len({lines[name]["color"] for name in usual}) == len(usual)


def test_lru_is_seen_at_a_single_capacity(simulation: Simulation) -> None:
    """Its line goes on below and above it; other policies are points, with no line between."""
    runs = tuple(run for run in simulation.runs if run.capacity_blocks == 4)
    chart = report.hit_rates_chart(replace(simulation, runs=runs, model=None))
    lines = {line.name: line for line in chart.data}
    assert min(lines["lru"].x) < 4 < max(lines["lru"].x)
    assert {line.mode for name, line in lines.items() if name != "lru"} == {"markers"}


def test_charts_show_every_run(simulation: Simulation) -> None:
    """LRU at every capacity, the others where they were replayed."""
    chart = report.hit_rates_chart(simulation)
    traces = {line.name: line for line in chart.data}
    assert set(traces) == {"lru", "tlru xi_tokens=10", "tlru xi_tokens=20", "belady*"}
    gib = simulation.model.bytes_for(simulation.trace.block_size) / 2**30
    assert list(traces["belady*"].x) == [blocks * gib for blocks in (2, 4, 8)]
    assert list(traces["lru"].x) == [blocks * gib for blocks in range(2, 9)]
    assert chart.layout.xaxis.title.text == "capacity (GiB)"
    blocks = report.hit_rates_chart(replace(simulation, model=None))
    assert blocks.layout.xaxis.title.text == "capacity (blocks)"
    assert list(blocks.data[0].x) == [2, 3, 4, 5, 6, 7, 8]
    bare = replace(simulation, model=None)
    for figure in (report.ttft_chart(bare, "p95"), report.tail_excess_chart(bare)):
        assert {tuple(line.x) for line in figure.data} == {(2, 4, 8)}
    assert len(report.over_time_chart(simulation, 4).data) == 4


def test_the_page_is_whole_and_safe(simulation: Simulation) -> None:
    """Every section and chart stands in one file, and no string of the trace is HTML."""
    page = USE_CASE.report(simulation).html()
    assert page.count('class="figure"') == 6
    assert "<h2>Summary</h2>" in page
    assert HOSTILE not in page


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("xi_tokens", 3147, "3,147"),
        ("ttl_s", 600, "10m"),
        ("ttl_s", float("inf"), "∞"),
        ("small_share", 0.1, "10.0%"),
        ("xi_percentile", 0.95, "p95"),
        ("xi_percentile", 0, "off"),
        ("turn_rate_per_s", 0.5, "0.5/s"),
        ("protected_uses", 2, "2"),
    ],
)
def test_values_are_told_in_their_units(name: str, value: float, words: str) -> None:
    """The unit that a parameter's name says."""
    assert format_value(name, value) == words

"""The sidebar's deployment: what its pages show is what the commands say of the same options."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from streamlit.testing.v1 import AppTest

from dashboard import data
from kvscope.cli.app import run
from kvscope.core import units
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.file import FILE, write_deployment
from kvscope.ingest.pipeline import ingest
from kvscope.report import overview
from kvscope.report.stored import all_reports
from kvscope.report.words import significant
from kvscope.store import traces
from kvscope.store.db import open_store
from kvscope.usecases.analyze import AnalyzeOptions, analyze, analyze_request
from tests.cli.shell import Streams
from tests.dashboard.shown import (
    EVERY_PAGE,
    captions,
    drawn,
    flags,
    page_html,
    settled,
    shown,
    table_with,
    tiles,
    titles,
    told,
    words,
    worked,
)
from tests.served import served, without_queue_times, write_served

TWO: dict[str, Any] = {"gpu": "h100", "model": "llama3-8b", "replicas": 2}
OPTIONS = ("--gpu", "h100", "--model", "llama3-8b", "--replicas", "2")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, in which there is no kvscope.toml yet."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def deployed(db: str, monkeypatch: pytest.MonkeyPatch, page: str = "", **address: str) -> AppTest:
    """Return a page for the deployment of `TWO`."""
    app = shown(db, monkeypatch, page, **{key: str(value) for key, value in TWO.items()}, **address)
    assert not app.exception
    return app


@pytest.mark.parametrize("traffic", ["fleet", "replica"])
def test_overview_begins_with_the_pool(
    db: str, monkeypatch: pytest.MonkeyPatch, traffic: Any
) -> None:
    """It begins with what the pool gives, and has all that `analyze` says of the deployment."""
    app = deployed(db, monkeypatch, traffic=traffic)
    with open_store(db, read_only=True) as store:
        request = analyze_request(AnalyzeOptions(**TWO, traffic=traffic))
        analysis = analyze(store, traces.find(store, None), request)
    now, possible = tiles(app)["Hit rate, now → possible"].split(" → ")
    assert now == units.format_share(analysis.present_rate)
    assert possible == units.format_share(analysis.caching.ideal)
    texts = [each.value.replace("\\", "").split("  \n") for each in app.main.markdown]
    sentences = [sentence for text in texts for sentence in text]
    assert set(overview.headline(analysis).sentences) <= set(sentences)
    first = " ".join(sentences)
    assert request.deployment is not None
    pool, each = request.deployment.pool, 2 if traffic == "fleet" else 1
    assert f"({units.format_count(pool.blocks * each)} blocks)" in first
    low, high = (units.format_count(end * each) for end in (pool.low_blocks, pool.high_blocks))
    assert f"derived: {low} to {high} blocks" in first
    assert request.deployment.summary in captions(app)


def test_one_cache_has_one_hit_rate(db: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of Overview's tile is Capacity's at the pool, Why's, and the mean of that over time.

    Also where the file states another pool than the one that was looked at before.
    """
    assert not shown(db, monkeypatch, gpu="h100", model="llama3-8b").exception
    small = Deployment(gpu="h100", model="llama3-8b", num_gpu_blocks=60)
    write_deployment(here / FILE, small)
    app = shown(db, monkeypatch)
    now = tiles(app)["Hit rate, now → possible"].split(" → ")[0]
    choices = app.session_state["choices"]
    where = choices.trace, choices.model, choices.hbm_bytes, choices.deployment
    analysis = data.analysis(*where, choices.options)
    served = data.served_over_time(choices.trace, analysis, choices.profile)
    hits, total = (
        sum(getattr(part.outcome, name) for part in served)
        for name in ("hit_tokens", "total_tokens")
    )
    assert units.format_share(hits / total) == now
    assert tiles(shown(db, monkeypatch, "capacity"))["Hit rate"] == now
    assert f"hits {now} of the input tokens" in words(worked(shown(db, monkeypatch, "why")))


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_page_takes_a_deployment(db: str, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    """No page ends in an error; without a GPU the sidebar says that it is a cache study.

    Looking changes nothing in the store.
    """
    before = Path(db).read_bytes()
    app = deployed(db, monkeypatch, "" if page == "overview" else page)
    assert not app.error
    assert "cache study" not in captions(app)
    app.selectbox(key="gpu").select("none").run()
    assert not app.exception
    assert not app.error
    assert len(app.title) == 1
    assert "A cache study" in captions(app)
    assert Path(db).read_bytes() == before


def test_capacity_marks_the_pool(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its size the multiple is 1; TTFT is the deployment's, not a preset's."""
    where = analyze_request(AnalyzeOptions(**TWO)).deployment
    assert where is not None
    app = deployed(db, monkeypatch, "capacity", capacity=str(2 * where.pool.blocks))
    assert tiles(app)["× pool"] == "1.00×"
    assert "× HBM" not in tiles(app)
    assert f"by the profile {where.latency.name}." in "".join(page_html(app))
    assert any('"text":"pool"' in chart.proto.spec for chart in app.get("plotly_chart"))


def test_ttfts_of_the_trace_are_its_latency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every page has the latency that the commands fit to the trace, and the sidebar says so."""
    made = without_queue_times(served(1, 0.5, requests=600, noise=0.1))
    for name, measured in (("half", made), ("behind", served(1, 1.3, requests=600))):
        path = write_served(tmp_path / f"{name}.jsonl", without_queue_times(measured))
        with open_store(tmp_path / "served.duckdb") as store:
            trace = ingest(store, str(path)).trace
            fitted = made.fit() if name == "half" else None
        a100 = {"gpu": "a100-80gb", "model": "llama3-8b", "trace": trace.name}
        app = shown(str(tmp_path / "served.duckdb"), monkeypatch, **a100)
        profile = app.session_state["choices"].profile
        if fitted is None:
            assert profile.name == "llama3-8b-bf16-1xa100-80gb"
            assert "TTFT is a roofline's, not fitted to the trace: only" in captions(app)
            app.selectbox(key="timing").select("trace").run()
            assert "were measured without another prefill" in app.error[0].value
        else:
            assert profile.name == "trace half"
            assert profile.per_token_s == pytest.approx(fitted.profile.per_token_s, rel=1e-3)
            assert f"TTFT is fitted to {fitted.requests} of the 600 TTFTs" in captions(app)
            app.selectbox(key="gpu").select("none").run()
            assert app.session_state["choices"].profile.name == "llama2-7b-a100"
            app.selectbox(key="latency").select("trace").run()
            assert app.session_state["choices"].profile.name == "trace half"


def test_recommendation_is_tunes(db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    """Verdict, figures, both ends and flags are those of `tune --json`, with a TPOT SLO."""
    app = deployed(db, monkeypatch, "recommendation", tpot_slo="50ms", gpu_hour="2.5")
    assert not [one for one in app.text_input if one.key == "have"]
    app.button(key="tune").click().run()
    settled(app, "Recommendation: ")
    document = told(
        capsys, "tune", "chats", "--db", db, "--slo", "200ms", "--tpot-slo", "50ms", *OPTIONS,
        "--gpu-hour", "2.5",
    )  # fmt: skip
    recommendation = document["recommendation"]
    assert titles(app)[1] == f"Recommendation: {recommendation['verdict']}"
    for sentence in document["words"]:
        assert sentence in words(app)
    row = table_with(app, "TTFT p50 (ms)", "prefills/s").to_numpy().tolist()[0]
    lru = recommendation["lru"]["validation"]["times_ms"]
    assert row[:5] == ["lru", *(significant(lru[rank]) for rank in ("p50", "p90", "p95", "p99"))]
    assert flags(app) == [recommendation["flags"]["vllm"]]
    assert "With the smallest pool and prefill" in words(app)
    assert "For: 2 replicas of 1 x h100" in words(app)
    with open_store(db, read_only=True) as store:
        of_command, of_page = all_reports(store)
    assert of_command.question == of_page.question  # so that the page opens with either


def test_what_cannot_be_is_one_line(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal has its remedy, on any page, and ends when the choice is mended."""
    app = deployed(db, monkeypatch, tp="3")
    assert [one.value.replace("\\", "") for one in app.error] == [
        "--tp: llama3-8b has 32 attention heads, not a multiple of 3; use 1, 2, 4, 8, 16"
    ]
    drawn(app.number_input(key="tp").set_value(2).run())  # nothing was analyzed before
    assert not app.error
    assert "2 replicas of 2 x h100" in words(app)
    app.selectbox(key="model").select("none").run()
    assert "A cache study" in captions(app)
    assert not app.error


def test_an_address_typed_by_hand(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no count, GPU or precision in it is the default."""
    app = deployed(db, monkeypatch, tp="0", weights="int1", traffic="all")
    assert app.session_state["choices"].deployment.stated == Deployment(**TWO)
    app = shown(db, monkeypatch, gpu="h1000", model="llama3-8b")
    assert not app.exception
    assert app.session_state["choices"].deployment is None


def test_what_was_said_once_holds(
    db: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """What commands stated is selected, drawn or not; another GPU starts anew, a file wins."""
    words = ("--slo", "350ms", "--percentile", "p90", "--gpu-hour", "2.5", "--max-num-seqs", "64")
    assert run(["tune", "--db", db, "--gpu", "H200-SXM", "--model", "llama3-8b", *words]) == 0
    capsys.readouterr()
    app = shown(db, monkeypatch, "recommendation")
    assert not app.exception
    assert app.session_state["choices"].deployment.stated == Deployment(
        gpu="h200", model="llama3-8b", gpu_hour=2.5, max_num_seqs=64
    )
    assert [app.text_input(key=key).value for key in ("slo", "percentile")] == ["350ms", "p90"]
    app = shown(db, monkeypatch, gpu="h100")
    stated = app.session_state["choices"].deployment.stated
    assert stated == Deployment(gpu="h100", model="llama3-8b", gpu_hour=2.5)
    write_deployment(here / FILE, Deployment(gpu="l4", model="qwen2-7b"))
    app = shown(db, monkeypatch)
    stated = app.session_state["choices"].deployment.stated
    assert stated == Deployment(gpu="l4", model="qwen2-7b")


def test_a_file_fills_the_defaults(db: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values are selected, the address's win, and `none` makes a cache study of it."""
    stated = Deployment(
        gpu="H200-SXM", tp=2, replicas=3, traffic="replica", model="qwen3-32b",
        weight_dtype="fp8", latency="llama2-7b-a100", gpu_hour=3.5, max_num_seqs=64,
    )  # fmt: skip
    write_deployment(here / FILE, stated)
    app = shown(db, monkeypatch)
    assert not app.exception
    choices = app.session_state["choices"]
    assert choices.deployment.stated == Deployment(
        gpu="h200", tp=2, replicas=3, traffic="replica", model="qwen3-32b",
        weight_dtype="fp8", latency="llama2-7b-a100", gpu_hour=3.5, max_num_seqs=64,
    )  # fmt: skip
    app = shown(db, monkeypatch, gpu="h100", replicas="4", weights="bf16")
    stated = app.session_state["choices"].deployment.stated
    assert (stated.gpu, stated.replicas, stated.weight_dtype) == ("h100", 4, "bf16")
    for page in ("", "capacity", "lab"):
        app = shown(db, monkeypatch, page, gpu="none")
        assert not app.error
        assert app.session_state["choices"].deployment is None


def test_ranks_divide_the_experts(db: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a pool of its own, as on the command line; two engines of them are not simulated."""
    asked = {"gpu": "h200", "model": "deepseek-v3", "tp": "1", "dp": "16"}
    app = shown(db, monkeypatch, **asked)
    assert not app.exception
    assert not app.error
    where = app.session_state["choices"].deployment
    assert where.pool.blocks == resolve(where.stated).pool.blocks
    assert (where.dp, where.pool.blocks > 10_000) == (16, True)
    assert "16 ranks of 1 x" in " ".join(each.value for each in app.caption)
    app = shown(db, monkeypatch, **asked, replicas="2")
    (error,) = (each.value for each in app.error)
    assert "2 engines of 16 ranks each" in error


def test_a_file_may_state_a_pool_without_a_gpu(
    db: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the deployment, until a GPU or none is selected."""
    write_deployment(here / FILE, Deployment(num_gpu_blocks=101, latency="llama2-7b-a100"))
    for page in ("", "capacity", "lab", "recommendation"):
        app = shown(db, monkeypatch, page)
        assert not app.exception
        assert not app.error
        where = app.session_state["choices"].deployment
        assert (where.pool.blocks, where.model) == (100, None)
    app.selectbox(key="gpu").select("none").run()
    assert app.session_state["choices"].deployment is None


def test_a_broken_file_names_itself(db: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a key or a GPU in it is unknown: one line."""
    for text, wrong in (('gpus = "h100"', "gpus"), ('gpu = "h1000"', "no GPU")):
        (here / FILE).write_text(f"schema = 1\n{text}\n")
        app = shown(db, monkeypatch)
        assert not app.exception
        (error,) = (one.value.replace("\\", "") for one in app.error)
        assert FILE in error
        assert wrong in error


def test_no_flags_without_a_switch(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """Where flags do not mend the verdict, the reason that `tune --json` has stands instead."""
    app = shown(db, monkeypatch, "recommendation", gpu="l4", model="qwen3-8b", slo="8ms")
    app.button(key="tune").click().run()
    settled(app, "Recommendation: ")
    options = ("--slo", "8ms", "--gpu", "l4", "--model", "qwen3-8b")
    document = told(capsys, "tune", "chats", "--db", db, *options)["recommendation"]
    assert titles(app)[1] == "Recommendation: unreachable"
    assert not flags(app)
    assert document["why_no_flags"] in captions(app)
    assert app.get("download_button")
    done = app.session_state["job tune"]
    done.result = replace(done.result, file=None)
    app.run()
    assert not app.exception
    assert "download" not in [each.key for each in app.get("download_button")]


def test_the_lab_replays_with_the_deployments_latency(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs have the roofline's numbers, at the capacities that the page names."""
    app = deployed(db, monkeypatch, "lab", sizes="60", policies="lru")
    app.button(key="run").click().run()
    settled(app, "Summary")
    where = app.session_state["choices"].deployment
    setting = app.session_state["job lab"].result.simulation.setting
    assert (setting.latency, setting.base_s) == (where.latency.name, where.latency.base_s)
    assert app.session_state["job lab"].result.simulation.capacities == [60]


def test_xi_is_varied_in_the_pool(
    db: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """What the page shows of a xi is what its command replays: in the deployment's pool."""
    small = Deployment(gpu="h100", model="llama3-8b", num_gpu_blocks=60)
    write_deployment(here / FILE, small)
    app = shown(db, monkeypatch, "lab", question="Effect of xi", slo="20ms")
    app = settled(app.button(key="run_xi").click().run(), "Effect of xi")
    app.select_slider(key="xi").set_value(256).run()
    (command,) = [one.value for one in app.code]
    (*_, run) = told(capsys, *shlex.split(command)[1:], "--param", "tlru.xi_tokens=256")["results"]
    assert (run["policy"], run["capacity_model"]) == ("tlru", "engine")
    assert tiles(app)["Hit rate"] == units.format_share(run["token_hit_rate"])
    assert tiles(app)["Over SLO"] == f"{run['violations']:,}"


def test_a_tier_is_recommended(
    db: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams
) -> None:
    """Words, sizes and file of `tune --compare-tiers`; without a GPU there is no such choice."""
    app = shown(db, monkeypatch, "recommendation")
    assert not app.button_group
    small = Deployment(gpu="h100", model="llama3-8b", num_gpu_blocks=60, gpu_hour=2.5)
    write_deployment(here / FILE, small)
    asked = {
        "slo": "10ms",
        "compare": "memory below the GPU",
        "tier_size": "8MiB,64MiB",
        "offload": "vllm@0.33:store_threshold=2",
    }
    app = shown(db, monkeypatch, "recommendation", **asked)
    app.button(key="tune").click().run()
    settled(app, "Recommendation")
    document = told(
        capsys, "tune", "chats", "--compare-tiers", "--db", db, "--slo", "10ms", "--tier-size",
        "8MiB,64MiB", "--offload", "vllm@0.33:store_threshold=2", "--output", "-",
    )  # fmt: skip
    for sentence in document["words"]:
        assert sentence in words(app)
    assert app.get("download_button")
    app.text_input(key="offload").set_value("hicache,sglang")
    app.button(key="tune").click().run()
    assert app.error
    varied = {"autoscale": "1..2@0.5", "disaggregate": "50GB/s", "choose_from": "session"}
    app = shown(db, monkeypatch, "recommendation", slo="1s", compare="routers", **varied)
    app.button(key="tune").click().run()
    settled(app, "Recommendation")
    options = table_with(app, "option")["option"].tolist()
    assert "1 to 2 replicas, session, lru" in options
    assert "1 prefill + 1 decode replicas, session, lru" in options

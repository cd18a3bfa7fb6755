"""An analysis says what it counts, and counts what it says: hand-computed on three requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvscope.core.hits import LIBCACHESIM, HitDefinition, side_by_side, standard
from kvscope.core.memory import OutOfMemoryError
from kvscope.core.trace import Trace
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.models import resolve_model
from kvscope.ingest.pipeline import ingest
from kvscope.replay.caching import Caching
from kvscope.report import overview
from kvscope.report.section import Section
from kvscope.report.words import share, trace_in_words
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.usecases.analyze import (
    USE_CASE,
    Analysis,
    AnalyzeOptions,
    AnalyzeRequest,
    analyze,
    analyze_request,
)

Stored = tuple[Store, Trace]

# Blocks of 4. r1 repeats r0, and its last token is computed; r2 goes on with r0 from another
# second block, then a new one, and a token that fills no block. 29 tokens, 7 full blocks.
ROWS = [
    {"chat_id": 1, "parent_chat_id": -1, "input_length": 8, "hash_ids": [1, 2]},
    {"chat_id": 2, "parent_chat_id": -1, "input_length": 8, "hash_ids": [1, 2]},
    {"chat_id": 3, "parent_chat_id": 1, "input_length": 13, "hash_ids": [1, 3, 4]},
]
ONE_ROW = ROWS[:1]


def stored(folder: Path, rows: list[dict[str, object]], store: Store) -> Trace:
    """Return these rows, a second apart, as a stored trace."""
    path = folder / "three.jsonl"
    lines = [
        row | {"timestamp": at, "output_length": 1, "type": "chat", "block_size": 4}
        for at, row in enumerate(rows)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    return ingest(store, str(path)).trace


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """Return the three requests in a store."""
    with open_store(MEMORY) as store:
        yield store, stored(tmp_path_factory.mktemp("three"), ROWS, store)


def section(analysis: Analysis, title: str) -> Section:
    """Return the section of this title."""
    (result,) = [each for each in overview.sections(analysis) if each.title == title]
    return result


def caching_of(three: Stored, definition: HitDefinition) -> Caching:
    """Return what caching gives under `definition`."""
    result = analyze(*three, AnalyzeRequest(definition=definition)).caching
    assert result is not None
    return result


def test_tokens_and_blocks_are_different_weights(three: Stored) -> None:
    """Two blocks hit: 8 of 29 tokens, 2 of 7 blocks; the headline takes the one that is asked."""
    by_token, by_block = (
        caching_of(three, HitDefinition("x", weight=w)) for w in ("token", "block")
    )
    for result in (by_token, by_block):
        assert result.curve[-1].token_hit_rate == pytest.approx(8 / 29)
        assert result.curve[-1].block_hit_rate == pytest.approx(2 / 7)
    assert (by_token.ideal, by_block.ideal) == pytest.approx((8 / 29, 2 / 7))
    assert by_block.rate(by_block.landmarks[-1].point) == pytest.approx(2 / 7)
    assert caching_of(three, LIBCACHESIM).ideal == pytest.approx(3 / 7)


def test_the_landmarks_are_shares_of_the_ideal(three: Stored) -> None:
    """The table names those that the capacities were read off for."""
    shares = [0.25, 0.5, 0.75, 0.9, 0.99, 1.0]
    analysis = analyze(*three)
    assert analysis.caching is not None
    assert [mark.share_of_ideal for mark in analysis.caching.landmarks] == shares
    table = overview.headline(analysis).tables[0]
    assert [row[0] for row in table.rows] == [f"{100 * share:g}% of ideal" for share in shares]


@pytest.mark.parametrize("definition", [standard(), LIBCACHESIM, standard(warmup=0.5)])
def test_misses_are_explained_of_whole_prompts(three: Stored, definition: HitDefinition) -> None:
    """Whatever the headline counts: 8 of 29 tokens hit, 4 diverged, 8 cold, 9 in the tail."""
    result = section(analyze(*three, AnalyzeRequest(definition=definition)), "Misses")
    (table,) = result.tables
    assert table.columns[1:] == (
        *("hit", "evicted", "diverged", "growth and cold", "below-block and last-token"),
    )
    assert table.rows[-1][1:] == ("27.6%", "0.0%", "13.8%", "27.6%", "31.0%")
    (words,) = result.sentences
    assert "token-weighted, whole trace, full blocks only, last-token rule on" in words
    assert f"outputs {definition.outputs}" in words


@pytest.mark.parametrize(
    ("served", "words"),
    [
        (
            ({"model": "a", "lora_id": 1}, {"model": "b"}, {}),
            "2 models, 1 LoRA adapter; requests of different models or adapters share no blocks.",
        ),
        (
            ({"cache_salt": "Kolibri"}, {}, {}),
            "1 cache salt; requests of different salts share no blocks.",
        ),
        (({"worker": 0}, {"worker": 1}, {}), "2 workers."),
        (({"worker": 0, "model": "a"},) * 3, None),
        (({},) * 3, None),
    ],
)
@pytest.mark.parametrize("hashes", [True, False])
def test_several_models_and_workers_are_named(
    tmp_path: Path, served: tuple[dict[str, object], ...], words: str | None, *, hashes: bool
) -> None:
    """In a line of the screen and in the document; without hashes nothing is shared anyway."""
    rows = [row | more for row, more in zip(ROWS, served, strict=True)]
    if not hashes:
        rows = [{name: row[name] for name in row if name != "hash_ids"} for row in rows]
        words = words and words.partition(";")[0].rstrip(".") + "."
    with open_store(MEMORY) as store:
        analysis = analyze(store, stored(tmp_path, rows, store))
    sentences = overview.headline(analysis).sentences
    named = [each for each in sentences if re.search("model|worker|salt", each)]
    assert named == ([words] if words else [])
    facts = USE_CASE.report(analysis).document()["trace"]
    assert facts.workers == len({each["worker"] for each in served if "worker" in each})
    assert facts.tenants == len({str({**each, "worker": 0}) for each in served})


@pytest.mark.parametrize("title", ["Contribution", "Over time", "Where in the prompt"])
def test_hits_of_another_definition_say_so(three: Stored, title: str) -> None:
    """What no option changes says which hits it counts."""
    words = " ".join(section(analyze(*three), title).sentences)
    assert "full blocks only, last-token rule on, outputs carried" in words
    assert "whatever --compat, --outputs and --warmup say" in words


@pytest.mark.parametrize(
    "chosen",
    [
        standard(),
        standard(outputs="ignored"),
        standard(warmup=0.5),
        standard(warmup=0.25, outputs="ignored"),
        standard(warmup=0.999),
        LIBCACHESIM,
    ],
)
def test_no_two_definitions_share_a_name(chosen: HitDefinition) -> None:
    """The chosen one is among them, and is called kvscope's only where it is."""
    table = side_by_side(chosen)
    assert chosen in table
    assert len({each.name for each in table}) == len(table) == len(set(table))
    assert [each for each in table if each.name == "kvscope"] == [standard()]


def test_each_neighbour_changes_what_its_name_says() -> None:
    """One thing each, the last-token rule alone among them."""
    own, *others = side_by_side(standard())
    changes = {
        each.name: {
            field
            for field in ("weight", "warmup", "partial", "last_token_rule", "outputs", "flat")
            if getattr(each, field) != getattr(own, field)
        }
        for each in others
    }
    assert changes["last-token rule off"] == {"last_token_rule"}
    assert changes["by block"] == changes["by request"] == {"weight"}
    assert changes["last half"] == {"warmup"}
    assert changes["outputs ignored"] == {"outputs"}


def test_flat_definitions_are_told_from_prefixes(three: Stored) -> None:
    """libcachesim's is the one that looks blocks up one by one."""
    (table,) = section(analyze(*three), "Definitions").tables
    lookup = table.columns.index("lookup")
    assert [row[0] for row in table.rows if row[lookup] == "flat"] == ["libcachesim"]


def test_notes_open_the_report(three: Stored) -> None:
    """What was missing or inferred stands in the summary, however often the trace is analyzed."""
    analysis = analyze(*three)
    noted = replace(analysis, trace=replace(analysis.trace, notes=("turns are inferred",)))
    assert overview.headline(noted).sentences[0] == "Note: turns are inferred."
    assert "<p>Note: turns are inferred.</p>" in USE_CASE.report(noted).html()


def test_a_model_sizes_requests_and_working_set(three: Stored) -> None:
    """Bytes, and multiples of the memory, of what is known in tokens and blocks."""
    model = resolve_model("vicuna-7b")
    result = analyze(*three, AnalyzeRequest(model=model, hbm_bytes=2**30)).characterization
    everything = result.request_sizes[0]
    assert everything.bytes is not None
    assert everything.hbm_multiple is not None
    assert everything.bytes.max == everything.tokens.max * 524_288
    assert everything.hbm_multiple.max == everything.bytes.max / 2**30
    alive = result.working_set
    assert alive is not None
    assert alive.peak_blocks > 0
    assert alive.peak_bytes == alive.peak_blocks * 4 * 524_288
    assert alive.mean_bytes == pytest.approx(alive.mean_blocks * 4 * 524_288)
    assert alive.p99_bytes == alive.p99_blocks * 4 * 524_288
    assert alive.peak_hbm_multiple == alive.peak_bytes / 2**30
    assert analyze(*three).characterization.request_sizes[0].bytes is None


@pytest.mark.parametrize("price", [None, 2.5])
def test_the_pool_and_the_gpus_for_more_hits(three: Stored, price: float | None) -> None:
    """What the pool hits, model or not, and the GPUs whose pools reach 90 % of the ideal."""
    stated = Deployment(num_gpu_blocks=2, block_size=4, tp=2, latency="llama2-7b-a100")
    request = AnalyzeRequest(deployment=resolve(replace(stated, gpu_hour=price), 4))
    analysis = analyze(*three, request)
    assert analysis.caching is not None
    nine = next(mark for mark in analysis.caching.landmarks if mark.share_of_ideal == 0.9)
    assert nine.gpus == 2 * nine.point.capacity_blocks == 2  # block 0 holds nothing
    assert nine.price_hour == (price and price * nine.gpus)
    words = " ".join(overview.headline(analysis).sentences)
    rate = float(analysis.caching.lru.rate(1))
    assert f"LRU hits {share(rate)} of the input tokens with an idle KV pool: " in words
    assert " is 1 block, stated." in words
    assert "LRU needs 1 block for 90%" in words


def test_a_pool_whose_replay_does_not_fit_into_memory_counts_as_idle(
    three: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The analysis, which fitted, is not lost; without the fault the pool is replayed."""
    request = analyze_request(AnalyzeOptions(gpu="l4", model="qwen2-7b"))
    replayed = analyze(*three, request)
    assert replayed.pool is not None
    other = replace(replayed, pool=replace(replayed.pool, token_hit_rate=0.123))
    assert other.present_rate == 0.123
    assert " with the KV pool: " in " ".join(overview.headline(replayed).sentences)

    def refuse(*_: object) -> None:
        raise OutOfMemoryError("needs more", where="a replay", remedy="take less")

    monkeypatch.setattr("kvscope.app.traces.replayable", refuse)
    analysis = analyze(*three, request)
    assert analysis.pool is None
    assert " with an idle KV pool: " in " ".join(overview.headline(analysis).sentences)


def test_no_reuse_needs_no_capacity(tmp_path: Path) -> None:
    """One request in words: singular, no table of capacities, no share of nothing."""
    with open_store(MEMORY) as store:
        analysis = analyze(store, stored(tmp_path, ONE_ROW, store))
    words = trace_in_words(replace(analysis.trace, bad_lines=1))
    assert "1 request over 0 s" in words
    assert "1 bad line left out" in words
    result = overview.headline(analysis)
    assert [table.title for table in result.tables] == ["Categories"]
    assert result.sentences[0] == (
        "An infinite cache would hit 0.0% of the input tokens: "
        "no prompt begins as an earlier one did."
    )
    assert not any("LRU needs" in sentence for sentence in result.sentences)


def test_lengths_alone_speak_of_no_hit_rate(tmp_path: Path) -> None:
    """Over time there are requests, and no word about a cache."""
    path = tmp_path / "lengths.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,1\n9,6,1\n")
    with open_store(MEMORY) as store:
        result = section(analyze(store, ingest(store, str(path)).trace), "Over time")
    assert result.sentences == ("Windows of 1 s.",)

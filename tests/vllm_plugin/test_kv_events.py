"""Requests from a stream of KV-cache events, as far as it shows them."""

from __future__ import annotations

import msgspec
import pytest

from kvscope.vllm_plugin.kv_events import (
    AllBlocksCleared,
    BlockChains,
    BlockRemoved,
    BlockStored,
    EventBatch,
)
from kvscope.vllm_plugin.recording import TraceLine

SIZE = 16


def stored(path: str, above: str | None = None, session: str | None = None) -> BlockStored:
    """Blocks called by letters were stored behind another."""
    hashes: list[bytes | int] = [letter.encode() for letter in path]
    return BlockStored(hashes, above.encode() if above else None, SIZE, "GPU", session)


def seen(
    *batches: tuple[float, list[BlockStored | BlockRemoved | AllBlocksCleared]],
) -> list[TraceLine]:
    """All lines of the stream."""
    chains = BlockChains()
    lines = [line for ts, events in batches for line in chains.take(EventBatch(ts, events))]
    return [*lines, *chains.ended(float("inf"))]


def lengths(lines: list[TraceLine]) -> list[tuple[int, int]]:
    """(prompt, output) in blocks, one token of output for none."""
    return [(one["input_length"] // SIZE, one["output_length"] // SIZE) for one in lines]


def test_chunks_are_prompt_and_single_blocks_output() -> None:
    """A prompt of five blocks in two chunks, and two blocks of output."""
    (line,) = seen(
        (10.0, [stored("abc")]),
        (10.5, [stored("de", "c")]),
        (11.0, [stored("f", "e")]),
        (12.0, [stored("g", "f")]),
    )
    assert lengths([line]) == [(5, 2)]
    assert line["timestamp"] == 0.0
    assert len(line["hash_ids"]) == 5


def test_a_later_turn_is_a_request_of_its_own() -> None:
    """After a pause, what continues a chain begins with all of it; sessions tell the parent."""
    one, two = seen(
        (10.0, [stored("abc", session="s")]),
        (11.0, [stored("d", "c", session="s")]),
        (30.0, [stored("ef", "d", session="s")]),
    )
    assert lengths([one, two]) == [(3, 1), (6, 0)]
    assert two["hash_ids"][:3] == one["hash_ids"]
    assert (one["parent_chat_id"], two["parent_chat_id"], two["turn"]) == (-1, 0, 2)
    assert two["timestamp"] == 20.0


def test_a_turn_that_comes_at_once_is_known_by_its_size() -> None:
    """An output fills block after block, a prompt several in one step."""
    lines = seen((1.0, [stored("abc")]), (1.1, [stored("d", "c")]), (1.2, [stored("ef", "d")]))
    assert lengths(lines) == [(3, 1), (6, 0)]


def test_a_chunk_follows_directly_on_a_full_step() -> None:
    """After a step with room, or a while later, several blocks at once are a next turn."""
    full = stored("abcdefgh"), stored("pqrstuvw")
    cut, roomy = (
        seen((1.0, [full[0]]), (1.1, [stored("ij", "h")])),
        seen((1.0, list(full)), (1.1, [stored("xy")]), (1.2, [stored("z12", "y")])),
    )
    assert lengths(cut) == [(10, 0)]
    assert sorted(lengths(roomy)) == [(2, 0), (5, 0), (8, 0), (8, 0)]
    late = [(1.2 + step / 10, [stored(letter)]) for step, letter in enumerate("uvw")]
    lines = seen((1.0, [stored("abcd")]), *late, (1.6, [stored("ef", "d")]))
    assert sorted(lengths(lines)) == [(1, 0), (1, 0), (1, 0), (4, 0), (6, 0)]


def test_a_single_block_that_comes_late_is_a_next_turn() -> None:
    """Output comes at a pace: the chain's own, or at first that of others."""
    chains, lines, now_s = BlockChains(), [], 1.0
    lines += chains.take(EventBatch(now_s, [stored("a")]))
    for before, letter in zip("abcdefghijk", "bcdefghijkl", strict=True):
        now_s += 0.1
        lines += chains.take(EventBatch(now_s, [stored(letter, before)]))
    lines += chains.take(EventBatch(now_s + 0.9, [stored("m", "l")]))
    assert lengths(lines) == [(1, 11)]
    lines += chains.take(EventBatch(now_s + 1.0, [stored("xy")]))
    lines += chains.take(EventBatch(now_s + 1.9, [stored("z", "y")]))
    lines += chains.ended(float("inf"))
    assert lengths(lines) == [(1, 11), (2, 0), (13, 0), (3, 0)]
    assert chains.unsure == 1


def test_counts_bound_what_is_missing() -> None:
    """Blocks stored, those that reports name, and the first output block of each chain."""
    chains = BlockChains()
    chains.take(EventBatch(1.0, [stored("abc"), stored("z", "y")]))
    chains.take(EventBatch(1.1, [stored("d", "c")]))
    chains.take(EventBatch(1.2, [stored("e", "d")]))
    chains.take(EventBatch(1.3, [stored("ab"), stored("q", "b")]))
    assert (chains.stored, chains.unknown, chains.reported, chains.unsure) == (9, 1, 1, 1)


def test_what_is_known_stays_bounded_where_removals_are_missed() -> None:
    """The oldest blocks are forgotten first; what lies behind them is unknown, not cut short."""
    chains = BlockChains(most_known=8)
    for number in range(100):
        chains.take(
            EventBatch(10.0 * number, [BlockStored([number * 2, number * 2 + 1], None, SIZE)])
        )
    assert len(chains._above) == 8
    chains.take(EventBatch(2000.0, [BlockStored([500], 199, SIZE)]))
    chains.take(EventBatch(2001.0, [BlockStored([501], 3, SIZE)]))
    assert chains.unknown == 1
    chains.take(EventBatch(2100.0, [BlockStored([600, 601, 602, 603, 604], None, SIZE)]))
    chains.take(EventBatch(2200.0, [BlockStored([700, 701], 604, SIZE)]))
    chains.take(EventBatch(2300.0, [BlockStored([800, 801], 604, SIZE)]))
    chains.take(EventBatch(2400.0, [BlockStored([900], 604, SIZE)]))
    assert chains.unknown == 2


def test_two_requests_part_ways_at_a_shared_head() -> None:
    """The second one's path goes through the first one's blocks."""
    one, two = seen((1.0, [stored("abc"), stored("xy", "b")]))
    assert lengths([one, two]) == [(3, 0), (4, 0)]
    assert two["hash_ids"][:2] == one["hash_ids"][:2]


def test_what_requests_find_begins_them() -> None:
    """Turns without a pause, each telling what it finds; while one waits for room it tells again.

    What it adds is prompt, even if that is a single block.
    """
    lines = seen(
        (1.0, [stored("abc", session="s")]),
        (1.2, [stored("abc", session="s")]),
        (1.3, [stored("abc", session="s")]),
        (1.4, [stored("abc", session="s"), stored("d", "c", session="s")]),
        (1.5, [stored("e", "d", session="s")]),
        (1.6, [stored("abcd", session="s")]),
    )
    assert lengths(lines) == [(3, 0), (4, 1), (4, 0)]
    assert [one["turn"] for one in lines] == [1, 2, 3]
    assert lines[1]["timestamp"] == pytest.approx(0.2)


def test_the_same_prompt_twice_is_two_requests() -> None:
    """Both computed it, as neither was done when the other began."""
    assert lengths(seen((1.0, [stored("abc"), stored("abc")]))) == [(3, 0), (3, 0)]


def test_what_lies_behind_unknown_blocks_is_counted() -> None:
    """Blocks stored before the recording began, or removed since, hide what follows them."""
    chains = BlockChains()
    assert chains.take(EventBatch(1.0, [stored("yz", "x")])) == []
    assert chains.unknown == 2
    chains.take(EventBatch(2.0, [stored("a")]))
    chains.take(EventBatch(20.0, [BlockRemoved([b"a"], "GPU")]))
    chains.take(EventBatch(21.0, [stored("b", "a"), AllBlocksCleared()]))
    assert chains.unknown == 3


def test_the_adapter_is_that_of_the_first_blocks() -> None:
    """A prompt of a LoRA adapter, behind whose blocks come no others'."""
    first, more = stored("ab"), stored("c", "b")
    first.lora_name = more.lora_name = "french"
    one, other = seen((1.0, [first, more, stored("x")]))
    assert (one["lora_name"], other["lora_name"]) == ("french", None)


def test_token_ids_are_not_even_read() -> None:
    """As vLLM packs it, with keys that kvscope does not know."""
    event = {
        "type": "BlockStored",
        "block_hashes": [b"a", 7],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3],
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
    }
    packed = msgspec.msgpack.encode([5.0, [event, {"type": "AllBlocksCleared"}], 0])
    batch = msgspec.msgpack.decode(packed, type=EventBatch)
    assert "[1, 2, 3]" not in repr(batch)
    assert isinstance(batch.events[1], AllBlocksCleared)
    (line,) = seen((batch.ts, batch.events[:1]))
    assert len(set(line["hash_ids"])) == 2


@pytest.mark.parametrize("medium", ["CPU", "STORAGE"])
def test_other_tiers_are_left_out(medium: str) -> None:
    """What is offloaded was stored once already."""
    event = msgspec.structs.replace(stored("ab"), medium=medium)
    assert seen((1.0, [event])) == []


def test_the_first_group_that_keeps_whole_prefixes_is_followed() -> None:
    """A model with several KV groups publishes each block once a group."""

    def group(number: int, kind: str, path: str) -> BlockStored:
        event = stored(path)
        event.group_idx, event.kv_cache_spec_kind, event.lora_id = number, kind, 7
        return event

    events = [
        group(0, "sliding_window", "xyz"),
        group(1, "full_attention", "abc"),
        group(2, "full_attention", "klm"),
    ]
    (line,) = seen((1.0, [*events, BlockRemoved([b"a"], "GPU", 0)]), (1.1, [stored("d", "c")]))
    assert lengths([line]) == [(3, 1)]
    assert line["lora_name"] == 7


def test_sglang_stores_an_output_when_its_request_has_ended() -> None:
    """Chunks of a prompt, its output, and a next turn behind it; hashes are signed numbers."""

    class Stored(msgspec.Struct, tag="BlockStored", omit_defaults=True):
        block_hashes: list[int]
        parent_block_hash: int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None = None
        session_id: str | None = None

    class Batch(msgspec.Struct, array_like=True):
        ts: float
        events: list[Stored]
        attn_dp_rank: int | None = None

    decode = msgspec.msgpack.Decoder(EventBatch).decode
    chains = BlockChains(outputs_at_end=True)
    lines = []
    for ts, first, count, above in (
        (1.0, -128, 128, None),
        (1.1, 0, 3, -1),
        (4.0, 3, 2, 2),
        (4.1, 5, 4, 4),
        (9.0, 20, 2, None),
        (9.1, 22, 1, 21),
    ):
        hashes = [*range(first, first + count)]
        event = Stored(hashes, above, [0] * count * SIZE, SIZE, None, "GPU")
        lines += chains.take(decode(msgspec.msgpack.encode(Batch(ts, [event], 0))))
    lines += chains.ended(float("inf"))
    assert lengths(lines) == [(131, 2), (2, 1), (137, 0)]
    assert lines[2]["hash_ids"][:131] == lines[0]["hash_ids"]

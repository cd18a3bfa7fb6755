"""What the parquet format alone does."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from kvscope.core.errors import InputError
from kvscope.ingest.formats.base import ReadOptions, Request
from kvscope.ingest.formats.parquet import BASETEN, MAGIC, Parquet, listed_elements, read_index
from kvscope.ingest.source import Source
from kvscope.store.db import statement


def parquet(frame: pl.DataFrame, **options: Any) -> bytes:
    """Return the bytes of a Parquet file."""
    file = io.BytesIO()
    frame.write_parquet(file, **options)
    return file.getvalue()


LENGTHS = pl.DataFrame({"input_tokens": [5, 6], "output_tokens": [1, 2]})


def test_the_query_takes_every_canonical_column() -> None:
    """A field added to Request must be added to the query too."""
    query = statement("ingest/parquet_rows")
    assert query.columns == Request.__struct_fields__[:2] + query.columns[2:]
    assert set(query.columns) == {*Request.__struct_fields__, *BASETEN}
    assert f"^({'|'.join(query.columns)})$" in query.text


def test_only_the_lengths_are_mandatory(read: Any) -> None:
    """Two columns make a trace; narrow integer types will do."""
    expected = [
        Request(input_tokens=5, output_tokens=1),
        Request(input_tokens=6, output_tokens=2),
    ]
    assert read(parquet(LENGTHS)).requests == expected
    narrow = LENGTHS.cast({"input_tokens": pl.UInt16, "output_tokens": pl.Int32})
    assert read(parquet(narrow)).requests == expected


def test_columns_of_times_and_sessions_that_are_not_read_are_named(read: Any) -> None:
    rows = LENGTHS.with_columns(created_ms=pl.lit(3), conv=pl.lit("c"), colour=pl.lit("red"))
    assert read(parquet(rows)).reader.notes == ["fields not read: conv, created_ms"]
    assert read(parquet(LENGTHS)).reader.notes == []


def test_baseten_names_the_columns_its_own_way(read: Any) -> None:
    """Times in ms; either session id; text is not read."""
    rows = LENGTHS.with_columns(
        timestamp_start_unix_ms=pl.Series([1_700_000_000_250, 1_700_000_001_000]),
        prompt=pl.Series(["secret", "secret"]),
        total_hashes=pl.Series([[11, 12], None]),
        provided_session_id=pl.Series(["s", None]),
        poor_man_session_id=pl.Series([1, 2]),
        duration_e2e_ms=pl.Series([2500, None]),
        duration_ttft_ms=pl.Series([250, None]),
        cached_tokens_reference=pl.Series([4, None]),
        model_name=pl.Series(["m", "m"]),
        org_id=pl.Series(["o", None]),
        block_size=pl.Series([4, 4]),
    )
    both = {"model": "m", "block_size": 4}
    assert read(parquet(rows)).requests == [
        Request(
            input_tokens=5,
            output_tokens=1,
            arrival_s=1_700_000_000.25,
            hash_ids=[11, 12],
            session_id="s",
            user_id="o",
            ttft_s=0.25,
            duration_s=2.5,
            cached_tokens=4,
            **both,
        ),
        Request(input_tokens=6, output_tokens=2, arrival_s=1_700_000_001.0, session_id=2, **both),
    ]


def test_every_field_of_a_request_is_a_column(read: Any) -> None:
    """What a reader may tell can be told in Parquet."""
    row = {
        "arrival_s": 1.5,
        "hash_ids": ["a", "b"],
        "chat_id": "c",
        "parent_chat_id": "p",
        "session_id": "s",
        "delay_s": 0.5,
        "user_id": 2**64 - 1,
        "type": "text",
        "turn": 2,
        "block_size": 16,
        "scope": "x",
        "clock": "y",
        "model": "m",
        "adapter": "french",
        "cache_salt": "0",
        "worker": "w",
        "ttft_s": 0.5,
        "queue_s": 0.25,
        "duration_s": 2.0,
        "cached_tokens": 4,
    }
    frame = LENGTHS.head(1).with_columns(
        pl.Series("user_id", [row["user_id"]], dtype=pl.UInt64),
        *(pl.Series(name, [value]) for name, value in row.items() if name != "user_id"),
    )
    assert read(parquet(frame)).requests == [Request(input_tokens=5, output_tokens=1, **row)]


@pytest.mark.parametrize("dtype", [pl.Int64, pl.UInt32, pl.UInt64, pl.String])
def test_hash_ids_of_any_width(read: Any, dtype: Any) -> None:
    """Lists of integers of any width, or of strings."""
    ids = pl.Series("hash_ids", [[1, 2], []], dtype=pl.List(pl.Int64)).cast(pl.List(dtype))
    requests = read(parquet(LENGTHS.with_columns(ids))).requests
    assert [r.hash_ids for r in requests] == (
        [["1", "2"], []] if dtype is pl.String else [[1, 2], []]
    )


@pytest.mark.parametrize(
    ("frame", "missing"),
    [
        (LENGTHS.drop("input_tokens"), "no column input_tokens; name the columns input_tokens, "),
        (LENGTHS.drop("output_tokens"), "no column output_tokens;"),
        (pl.DataFrame({"a": [1]}), "no column input_tokens and no column output_tokens;"),
    ],
)
def test_missing_mandatory_columns_are_named(read: Any, frame: pl.DataFrame, missing: str) -> None:
    """The error says which columns are missing and what they should be called."""
    with pytest.raises(InputError) as caught:
        read(parquet(frame))
    assert str(caught.value).startswith(f"{read.path}: {missing}")


def test_rows_keep_their_order_and_numbers_across_row_groups(read: Any) -> None:
    """Rows come in file order however the file is cut, and bad ones are told by number."""
    count = 50_000
    frame = pl.DataFrame(
        {
            "input_tokens": [None if row in {4_096, 31_999} else row + 1 for row in range(count)],
            "output_tokens": [0] * count,
        }
    )
    result = read(parquet(frame, row_group_size=3_000))
    tokens = [request.input_tokens for request in result.requests]
    assert tokens == [row + 1 for row in range(count) if row not in {4_096, 31_999}]
    assert [line for line, _ in result.rejects.lines] == [4_097, 32_000]


def test_damage_is_told_of_the_users_file(tmp_path: Path) -> None:
    """A compressed file is unpacked somewhere else to be read; the message does not go there."""
    path = tmp_path / "trace.parquet.gz"
    path.write_bytes(gzip.compress(parquet(LENGTHS)[:-8]))
    source = Source(str(path))
    with pytest.raises(InputError, match="the Parquet file is damaged") as caught:
        list(Parquet(ReadOptions()).records(source))
    source.close()
    assert "kvscope-" not in str(caught.value)


def test_a_path_is_no_pattern(tmp_path: Path) -> None:
    """A file whose name looks like a pattern is read, and none of its neighbours is."""
    for name in ("trace[1].parquet", "trace1.parquet"):
        (tmp_path / name).write_bytes(parquet(LENGTHS.head(1 if "[" in name else 2)))
    source = Source(str(tmp_path / "trace[1].parquet"))
    records = list(Parquet(ReadOptions()).records(source))
    source.close()
    assert [list(part) for part in records] == [[(1, [Request(input_tokens=5, output_tokens=1)])]]


def test_folders_add_no_columns(tmp_path: Path) -> None:
    """A folder named type=x is a folder, not a column."""
    folder = tmp_path / "type=chat"
    folder.mkdir()
    (folder / "trace.parquet").write_bytes(parquet(LENGTHS.head(1)))
    source = Source(str(folder / "trace.parquet"))
    (read,) = Parquet(ReadOptions()).records(source)
    source.close()
    assert read.requests[0].type is None


def test_ids_that_are_no_list_are_refused_row_by_row(read: Any) -> None:
    """A number where a list belongs."""
    result = read(parquet(LENGTHS.with_columns(hash_ids=pl.Series([1.5, None]))))
    assert [request.input_tokens for request in result.requests] == [6]
    assert "Expected `array | null`, got `float`" in result.rejects.lines[0][1]


def test_a_folder_of_files_is_one_trace(tmp_path: Path) -> None:
    """Files one after another, compressed or not, and a bad row with its own file's number."""
    bad = LENGTHS.with_columns(input_tokens=pl.Series([None, 7]))
    (tmp_path / "a.parquet").write_bytes(parquet(LENGTHS))
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(parquet(bad)))
    source = Source(str(tmp_path))
    parts = list(Parquet(ReadOptions()).records(source))
    source.close()
    assert [request.input_tokens for part in parts for request in part.requests] == [5, 6, 7]
    [(row, _)] = [refused for part in parts for refused in part.refused]
    assert source.place(row) == (str(tmp_path / "b.parquet.gz"), 1)


def test_nested_columns_are_refused_unread(tmp_path: Path, read: Any) -> None:
    """DuckDB would take years for the second one."""
    deep = "BIGINT" + "[]" * 100
    for kind in ("STRUCT(a BIGINT)", deep, "MAP(BIGINT, BIGINT)"):
        path = tmp_path / "nested"
        with duckdb.connect() as connection:
            query = f"SELECT 5 AS input_tokens, 1 AS output_tokens, NULL::{kind} AS type"
            connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
        with pytest.raises(InputError, match="column type is nested; write plain values"):
            read(path.read_bytes())


def test_elements_of_an_index_are_counted(tmp_path: Path) -> None:
    """Each row group adds as many, and an index that is cut anywhere ends the count."""
    path = tmp_path / "trace.parquet"
    counts = []
    for groups in (1, 2, 3):
        frame = pl.DataFrame({"input_tokens": range(groups), "output_tokens": range(groups)})
        path.write_bytes(parquet(frame, row_group_size=1))
        index = read_index(str(path))
        counts.append(listed_elements(index))
    assert counts[2] - counts[1] == counts[1] - counts[0] > 2 * 2  # a column has several lists
    assert all(listed_elements(index[:size]) <= counts[2] for size in range(len(index)))


_READ = """
import resource, sys
from kvscope.core.errors import InputError
from kvscope.ingest.formats.base import ReadOptions
from kvscope.ingest.formats import parquet
from kvscope.ingest.source import Source

parquet.EXPANSION_FREE_BYTES = 1 << 24  # less to write

def read(path):
    try:
        for records in parquet.Parquet(ReadOptions()).records(Source(path)):
            for _, reason in records.refused:
                return reason
            return max(len(request.hash_ids or ()) for request in records.requests)
    except InputError as error:
        return error.what

read(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[2:]:
    print(read(path))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_bombs_end_in_bounded_memory(tmp_path: Path) -> None:
    """Very many values are refused unread, too long texts row by row, and ids are cut."""
    columns = {
        "sound": "0 AS clock",
        "ids": "list_resize([7], 1_050_000, 7) AS hash_ids FROM range(2)",
        "long": "list_resize(['x'], 1_049_000, 'x') AS hash_ids",
        "text": "repeat('x', 2_000_000) AS type FROM range(9)",
        "bytes": "repeat('x', 2_000_000)::BLOB AS type FROM range(9)",
    }
    options = "FORMAT parquet, COMPRESSION zstd"
    paths = [str(tmp_path / name) for name in columns]
    with duckdb.connect(config={"threads": 1}) as connection:
        for path, others in zip(paths, columns.values(), strict=True):
            query = f"SELECT 100 AS input_tokens, 1 AS output_tokens, {others}"
            connection.execute(f"COPY ({query}) TO '{path}' ({options})")
            assert Path(path).stat().st_size < 25_000
    # The index's version, and a schema of 90 million elements, which DuckDB would allocate.
    index = bytes.fromhex("1502 19fc") + b"\x80\xa3\xf5\x2a" + bytes(40)
    (tmp_path / "list").write_bytes(MAGIC + index + len(index).to_bytes(4, "little") + MAGIC)
    paths.append(str(tmp_path / "list"))
    done = subprocess.run(
        [sys.executable, "-c", _READ, *paths], capture_output=True, text=True, check=True
    )
    *ends, grown_kib = done.stdout.splitlines()
    bomb = "decompresses to more than 10,000 times its size, as no trace does"
    text = "text longer than 65,536 characters in type"
    listed = "its index lists more than 1,048,576 elements, as no trace's does"
    assert ends == [bomb, "1048577", text, text, listed]
    assert int(grown_kib) < 160 * 1024

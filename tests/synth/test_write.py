"""Files: the same records give the same bytes, whatever the ending."""

import gzip
import os
from pathlib import Path

import msgspec
import pytest
import zstandard

from kvscope.synth import profiles
from kvscope.synth.base import Record
from kvscope.synth.profiles import by_name, write_jsonl

SAMPLE_FOLDER = Path(__file__).parents[2] / "sample_traces"


def read(path: Path) -> bytes:
    """Return the lines of a trace file, unpacked."""
    packed = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(packed)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    return packed


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_bytes(tmp_path: Path, ending: str) -> None:
    """Written twice, under two names: equal bytes that decode to the records."""
    profile = by_name("birth-death")
    for name in ("a", "b"):
        records = profile.generate(requests=100, seed=4)
        assert write_jsonl(records, tmp_path / f"{name}.{ending}") == 100
    first, second = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    assert first.read_bytes() == second.read_bytes()
    lines = read(first).splitlines()
    decoded = [msgspec.json.decode(line, type=Record) for line in lines]
    assert decoded == list(profile.generate(requests=100, seed=4))
    other = tmp_path / f"c.{ending}"
    write_jsonl(profile.generate(requests=100, seed=5), other)
    assert other.read_bytes() != first.read_bytes()


def test_half_a_trace_is_no_trace(tmp_path: Path) -> None:
    """When the records break off, neither the file nor its beginning is left behind."""

    def broken() -> object:
        yield from by_name("birth-death").generate(requests=3, seed=1)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_jsonl(broken(), tmp_path / "trace.jsonl.gz")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """A pipe (or /dev/null) is written to, not put aside for a file of its name."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_jsonl(by_name("birth-death").generate(requests=1, seed=1), pipe)
    assert os.read(reader, 100_000).endswith(b"}\n")
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("sample", profiles.SAMPLES, ids=lambda sample: sample.profile)
def test_samples_regenerate(tmp_path: Path, sample: profiles.SampleTrace) -> None:
    """The shipped files hold what their profiles generate.

    Compared unpacked: another zlib may pack the same lines into other bytes.
    """
    path = profiles.write_sample(sample, tmp_path)
    assert read(path) == read(SAMPLE_FOLDER / sample.file)
    assert (SAMPLE_FOLDER / sample.file).stat().st_size < 1.1e6


def test_samples_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a folder the command says what it takes."""
    assert profiles.main([]) == 2
    assert "FOLDER" in capsys.readouterr().err

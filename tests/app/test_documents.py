"""The documents of `--json`: what they all begin with, plain JSON, and their schemas."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from jsonschema import Draft202012Validator, ValidationError
from msgspec import Struct
from msgspec.structs import replace

from kvscope import __version__
from kvscope.cli.app import COMMANDS, run
from kvscope.core.trace import Trace
from kvscope.usecases.catalog import StoredTrace
from kvscope.usecases.documents import document, to_dict, to_json
from kvscope.usecases.schemas import DOCUMENTS, schema, version, write_schemas
from tests.cli.shell import Streams
from tests.cli.test_output import TRACE

_GROUPS = {"deployment", "traces", "runs"}
"""Commands whose sub-commands take `--json`."""
PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas"


@dataclass(frozen=True)
class _Point:
    capacity_blocks: int
    token_hit_rate: float


@dataclass(frozen=True)
class _Measured:
    curve: list[_Point]
    best: Any
    worst: Any
    sizes: Any


class _Inner(Struct):
    """A record in another one."""

    DOCUMENT: ClassVar[str] = "size wait_ms twice"
    size: int
    wait_s: float | None = None

    @property
    def twice(self) -> tuple[int, ...]:
        """Its size, twice."""
        return self.size, self.size


class _Outer(Struct):
    """A record that states its document."""

    DOCUMENT: ClassVar[str] = "*inner own=inner.size inner=other"
    inner: _Inner | None
    other: _Inner


def _listed(*traces: Trace) -> dict[str, Any]:
    """Return the document of `kvscope traces`."""
    return document("traces", {"traces": tuple(map(StoredTrace, traces))})


def test_what_documents_begin_with() -> None:
    """Version, schema, command, and the trace or null."""
    listed = to_dict(_listed(TRACE))
    assert list(listed)[:4] == ["kvscope", "schema", "command", "trace"]
    assert listed["kvscope"] == __version__
    assert listed["schema"] == 1
    assert listed["command"] == "traces"
    assert listed["trace"] is None


def test_values_are_plain_json() -> None:
    """Dataclasses and numpy values are JSON's own; what is not finite is null."""
    plain = json.loads(
        to_json(
            _Measured(
                curve=[_Point(8, 0.5), _Point(16, float("nan"))],
                best=np.float64(0.25),
                worst=np.float64("inf"),
                sizes=np.array([1, 2]),
            )
        )
    )
    assert plain["curve"][1] == {"capacity_blocks": 16, "token_hit_rate": None}
    assert plain["best"] == 0.25
    assert plain["worst"] is None
    assert plain["sizes"] == [1, 2]


def test_a_record_states_its_document() -> None:
    """Attributes of attributes, seconds in ms, fields of a record; null where there is none."""
    inner, shown = _Inner(2, 0.5), {"size": 2, "wait_ms": 500.0, "twice": [2, 2]}
    assert to_dict(_Outer(inner, _Inner(3))) == shown | {
        "own": 2,
        "inner": {"size": 3, "wait_ms": None, "twice": [3, 3]},
    }
    absent = {"size": None, "wait_ms": None, "twice": [], "own": None, "inner": shown}
    assert to_dict(_Outer(None, inner)) == absent


def test_json_is_ascii() -> None:
    """Names of any script and broken ones get through whatever stdout's encoding is."""
    names = ("é 𝄞", "plain")
    text = to_json(_listed(*(replace(TRACE, name=name) for name in names)))
    assert text.isascii()
    assert [trace["name"] for trace in json.loads(text)["traces"]] == list(names)


def test_every_document_has_a_schema(capsys: Streams) -> None:
    """Every command that takes `--json` prints a document whose schema is known by its name."""
    for name, _ in COMMANDS:
        run([name, "--help"])
        takes_json = "--json" in capsys.readouterr().out
        assert takes_json == (name in DOCUMENTS) or name in _GROUPS, name
    for name, kind in DOCUMENTS.items():
        assert schema(name)["$defs"][kind.__name__]["properties"]["command"] == {"enum": [name]}


def test_published_schemas_are_current(tmp_path: Path) -> None:
    """docs/schemas holds what `make docs` writes, and older versions of the same documents."""
    written = write_schemas(tmp_path)
    for path in written:
        assert path.read_text() == (PUBLISHED / path.name).read_text(), "run `make docs`"
    older = {path.name for path in PUBLISHED.iterdir()} - {path.name for path in written}
    for name in older:
        command, _, number = name.removesuffix(".json").rpartition("-")
        assert int(number) < version(command)
    known = {f"{name}-1.json" for name in ("fit", "retention", "runs", "simulate", "tune")}
    assert older == known, "an older version stays for one minor version"


def test_schemas_are_valid_and_refuse() -> None:
    """Each is a schema itself; a missing field and a wrong type are refused."""
    for command in DOCUMENTS:
        Draft202012Validator.check_schema(schema(command))
    known = Draft202012Validator(schema("traces"))
    empty = to_dict(_listed())
    known.validate(empty)
    known.validate(empty | {"new": 1})
    for wrong in (empty | {"traces": None}, {"traces": []}, empty | {"schema": 2}):
        with pytest.raises(ValidationError):
            known.validate(wrong)

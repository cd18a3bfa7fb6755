"""How the tests of `kvscope validate` ask it, and read what it printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.shell import Streams

# What the fake server takes for a prompt, and the profile that says so.
TAKES = {"base_s": 4e-3, "per_token_s": 5e-5}
PROFILE = """schema = 1
name = "the fake's own"
source = "what it sleeps"
base_ms = 4.0
per_token_ms = 0.05
"""


def asked(trace: str, *options: str) -> list[str]:
    folder = Path(trace).parent
    return [
        *("validate", trace, "--db", str(folder / "store.duckdb")),
        *("--latency", str(folder / "latency.toml"), "--replay", "lru", *options),
    ]


def document(printed: Streams) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed.readouterr().out)
    return found


def tolerant(trace: str) -> list[str]:
    """Return options, with a profile, by which all below ten seconds is as predicted."""
    slow = Path(trace).parent / "latency.toml"
    slow.write_text(PROFILE.replace("4.0", "5000.0"))
    return ["--tolerance", "100%"]

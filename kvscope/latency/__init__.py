"""How long the first token takes: profiles of engines, from presets and from files."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from kvscope.core.errors import UsageError
from kvscope.latency.file import read_profile, write_profile
from kvscope.latency.presets import DEFAULT_PROFILE, MODELS, PRESETS
from kvscope.latency.profile import LatencyProfile

__all__ = [
    "DEFAULT_PROFILE",
    "MODELS",
    "PRESETS",
    "LatencyProfile",
    "load_profile",
    "read_profile",
    "write_profile",
]


def load_profile(name_or_path: str = DEFAULT_PROFILE) -> LatencyProfile:
    """The latency profile that the text names: a preset, or a file as `kvscope calibrate` writes.

    A preset's exact name wins over a file of that name: write `./name` for the file. Raises
    UsageError for a name that is neither (with the nearest presets), InputError for a file that
    is not a profile.
    """
    if name_or_path in PRESETS:
        return PRESETS[name_or_path]
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.is_file():
        return read_profile(path)
    near = get_close_matches(name_or_path.lower(), PRESETS, n=3, cutoff=0.5)
    known = f"did you mean {', '.join(near)}" if near else f"presets: {', '.join(PRESETS)}"
    raise UsageError(
        f"no latency profile {name_or_path!r}",
        remedy=f"{known}, or name the file that `kvscope calibrate` wrote",
    )

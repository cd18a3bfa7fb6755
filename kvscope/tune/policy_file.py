"""A policy as a file for an engine's plugin: the part of a recommendation that the plugin reads."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kvscope import __version__
from kvscope.policies.base import Policy
from kvscope.policies.bound import SCHEMA
from kvscope.policies.fits import Fit
from kvscope.simulate.latency.file import quoted
from kvscope.tune.toml_lines import policy_lines


def write_policy(
    path: Path, policy: Policy, fitted: Fit | None, *, trace: str, block_size: int
) -> None:
    """Write the policy, and what was fitted for it, to `path`: all of it or nothing."""
    text = [
        f"# Written by kvscope {__version__}, `kvscope fit --export`, from {quoted(trace)}.",
        f"schema = {SCHEMA}",
        f"trace = {quoted(trace)}",
        f"block_size = {block_size}  # tokens, of the trace; an engine may have others",
        "",
        *policy_lines(policy),
        *(["", *fitted.lines()] if fitted is not None else []),
    ]
    write_whole(path, "\n".join(text) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Put `text` in the place of what `path` has; who reads it finds the one or the other."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)  # mkstemp's is for its owner alone
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

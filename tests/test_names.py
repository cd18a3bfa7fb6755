"""Names in the sources: no two classes of one name, and no variables named after their history."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VAGUE = {"found", "gone", "one", "told", "who"}
"""Names that say how a value came about instead of what it is."""
JSON_FIELDS: set[tuple[str, str]] = set()
"""Fields of published documents, whose names stay."""


@cache
def trees(folder: str) -> dict[Path, ast.Module]:
    """Return the syntax tree of every module below a folder of the checkout."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def variables(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the name and line of every variable and parameter that the module binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def test_classes_have_names_of_their_own() -> None:
    """A class name means one thing in all of kvscope."""
    modules = defaultdict(list)
    for path, tree in trees("kvscope").items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path))
    shared = {name: paths for name, paths in modules.items() if len(paths) > 1}
    assert shared == {}


def test_variables_say_what_they_hold() -> None:
    """No variable is named `found`, `one`, `told`, `gone` or `who`."""
    vague = [
        f"{path}:{line}: {name}"
        for folder in ("kvscope", "dashboard", "benchmarks")
        for path, tree in trees(folder).items()
        for name, line in variables(tree)
        if name in VAGUE and (str(path), name) not in JSON_FIELDS
    ]
    assert vague == []

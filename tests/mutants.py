"""Break lines of kvscope one at a time, and name those that the tests of their room do not notice.

`python -m tests.mutants fleet replay --count 30 --seed 1` takes a sample of comparisons, sums,
bounds and conditions of these rooms. Each is changed in a copy of the tree, in which `tests/ROOM`,
or what `--tests` names, then runs up to its first failure. The same seed breaks the same lines
before and after a change of the tests.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
TREE = ("kvscope", "dashboard", "queries", "tests", "docs", "benchmarks", "sample_traces")
LEFT_OUT = "not engine and not router and not install and not long"
LIMIT_S = 300
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
BOUNDS = {"min": "max", "max": "min"}


class Mutant(NamedTuple):
    """A file below the root, the node that is replaced, and the text in its place."""

    path: Path
    node: ast.expr
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno}: {ast.unparse(self.node)} -> {self.text}"

    def source(self, whole: str) -> str:
        """Return the file with the node replaced."""
        lines = whole.encode().splitlines(keepends=True)
        node, end_line, end = self.node, self.node.end_lineno or 0, self.node.end_col_offset or 0
        begin = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
        rest = lines[end_line - 1][end:] + b"".join(lines[end_line:])
        return (begin + f"({self.text})".encode() + rest).decode()


def broken(node: ast.AST) -> Any:
    """Return a wrong expression in place of `node`, None where there is nothing to break."""
    wrong: Any = copy.copy(node)
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            wrong.ops = [SWAPPED[type(op)]()]
        case ast.BoolOp(op=op):
            wrong.op = SWAPPED[type(op)]()
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult()):
            wrong = left  # drops a term
        case ast.Call(func=ast.Name(id=name)) if name in BOUNDS:
            wrong.func = ast.Name(BOUNDS[name])
        case ast.Constant(value=value) if type(value) is int:
            wrong.value = value + 1
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            wrong = operand
        case _:
            wrong = None
    return wrong


def inside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of function bodies that compute: neither annotations nor raised errors."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            waiting: list[ast.AST] = list(function.body)
            while waiting:
                node = waiting.pop()
                yield node
                if isinstance(node, ast.AnnAssign):
                    waiting += [node.value] if node.value else []
                elif not isinstance(node, ast.Raise | ast.FunctionDef | ast.JoinedStr):
                    waiting += ast.iter_child_nodes(node)


def mutants(room: str) -> list[Mutant]:
    """Return all mutants of a room (a folder or a file of kvscope), in order."""
    below = ROOT / "kvscope" / room
    files = sorted(below.rglob("*.py")) if below.is_dir() else [below.with_suffix(".py")]
    return [
        Mutant(path.relative_to(ROOT), node, ast.unparse(wrong))
        for path in files
        for node in inside_functions(ast.parse(path.read_text()))
        if isinstance(node, ast.expr) and (wrong := broken(node)) is not None
    ]


def noticed(mutant: Mutant, tests: list[str], folder: str) -> str:
    """Run the tests on the broken tree in `folder`; return what fails first, "" if nothing does."""
    broken_file = Path(folder) / mutant.path
    whole = broken_file.read_text()
    broken_file.write_text(mutant.source(whole))
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", LEFT_OUT]
    environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, "--hypothesis-profile=ci", *tests],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "no end"
    finally:
        broken_file.write_text(whole)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (failed or [done.stderr[-200:]])[0] if done.returncode else ""


def main() -> int:
    """Print a line for each mutant, and how many are noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="+", help="folders below kvscope/ and tests/")
    parser.add_argument("--tests", nargs="+", default=[])
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    caught = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in TREE:
            shutil.copytree(ROOT / name, Path(folder) / name)
        for path in (*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile"):
            shutil.copy(path, folder)
        for at in range(options.count):
            room = options.rooms[at % len(options.rooms)]
            mutant = random.Random(f"{options.seed} {at}").choice(mutants(room))
            failed = noticed(mutant, options.tests or [f"tests/{room}"], folder)
            caught += bool(failed)
            sys.stdout.write(f"{'caught' if failed else 'MISSED'} {mutant} {failed[:120]}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{caught} of {options.count} caught\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

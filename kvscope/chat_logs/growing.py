"""Chat templates under which prompts of a conversation grow: turns only add text before an ending.

The prompts of all turns can then be cut out of one rendering of the whole conversation. A template
qualifies if it writes text before it reads the next message, and an ending that depends on no
message: its code must read messages in one loop that looks neither ahead nor at their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jinja2 import nodes

_STATE = frozenset({"namespace", "cycler", "joiner"})
"""Jinja's objects in which a loop can leave something for the code after it."""
_BEHIND = frozenset({"first", "index", "index0", "previtem", "cycle", "changed"})
"""Attributes of Jinja's `loop` that do not depend on later messages."""
_OTHERS = (nodes.Block, nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.With)


class ReadInOrder(Sequence[Any]):
    """Messages that note in `ends`, by index, `written()` characters as each or the end is read."""

    def __init__(
        self, items: Sequence[Any], written: Callable[[], int], ends: dict[int, int], first: int = 0
    ) -> None:
        self._items, self._written, self._ends, self._first = items, written, ends, first

    def __getitem__(self, at: Any) -> Any:
        """Return a message, or those of a slice, which store their indices in the whole list."""
        if not isinstance(at, slice):
            return self._items[at]
        first = self._first + (at.start or 0)
        return ReadInOrder(self._items[at], self._written, self._ends, first)

    def __iter__(self) -> Iterator[Any]:
        """Yield each message."""
        for at, item in enumerate(self._items, self._first):
            self._ends[at] = self._written()
            yield item
        self._ends[self._first + len(self._items)] = self._written()

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._items)


def least_messages(template: nodes.Template) -> int | None:
    """Return from how many messages on prompts grow; None if the template's code does not show it.

    If not None, the code reads `messages` only in a loop over them and by constant indices.
    """
    if next(template.find_all(_OTHERS), None) is not None:
        return None
    lists, state, known = _variables(template)
    least = skipped = 0
    for item in template.find_all(nodes.Getitem):
        if isinstance(item.node, nodes.Name) and item.node.name in lists:
            if (index := _index(item.arg)) is None:
                return None
            if isinstance(item.arg, nodes.Slice):  # of an assignment
                skipped += index
            else:
                known.add(id(item.node))
                least = max(least, index)
    macros = [*template.find_all(nodes.Macro)]
    for loop, rest in _loops(template.body, lists):
        ending = [*rest, *(macros if any(map(_calls, rest)) else [])]
        read = _names(ending)
        if loop.recursive or loop.else_ or read & (lists | state) or not _looks_back(loop):
            return None
        known.add(id(loop.iter))
    uses = (each for each in template.find_all(nodes.Name) if each.name in lists)
    return least + skipped + 1 if all(id(each) in known for each in uses) else None


def _variables(template: nodes.Template) -> tuple[set[str], set[str], set[int]]:
    """Return names of message lists, names that may carry a loop's state, and ids of safe nodes.

    A message list is `messages` or a variable to which it, or its end, is assigned; safe are the
    name nodes of such assignments. A loop can leave state in a namespace, a cycler, a joiner, and
    in any name of an assignment with one of these.
    """
    lists, state, known = {"messages"}, set(_STATE), set[int]()
    for assign in (*template.find_all(nodes.Assign), *template.find_all(nodes.AssignBlock)):
        if isinstance(assign, nodes.Assign) and isinstance(assign.target, nodes.Name):
            source = assign.node
            if isinstance(source, nodes.Getitem) and isinstance(source.arg, nodes.Slice):
                source = source.node
            if isinstance(source, nodes.Name) and source.name in lists:
                lists.add(assign.target.name)
                known |= {id(source), id(assign.target)}
        if state & (names := _names([assign])):
            state |= names
    return lists, state, known


def _names(body: Iterable[nodes.Node]) -> set[str]:
    names = (name for each in body for name in (each, *each.find_all(nodes.Name)))
    return {each.name for each in names if isinstance(each, nodes.Name)}


def _calls(node: nodes.Node) -> bool:
    return next(node.find_all(nodes.Call), None) is not None


def _index(node: nodes.Node) -> int | None:
    """Return a constant index (0 or more), or the start of an open-ended slice; else None."""
    if isinstance(node, nodes.Slice):
        if node.stop is not None or node.step is not None:
            return None
        node = node.start or nodes.Const(0)
    is_number = isinstance(node, nodes.Const) and type(node.value) is int and node.value >= 0
    return node.value if isinstance(node, nodes.Const) and is_number else None


def _loops(
    body: Sequence[nodes.Node], lists: set[str]
) -> Iterator[tuple[nodes.For, list[nodes.Node]]]:
    """Yield the outermost loops over the variables `lists`, each with the code that follows it."""
    for at, node in enumerate(body):
        rest = [*body[at + 1 :]]
        if isinstance(node, nodes.For) and isinstance(node.iter, nodes.Name):
            if node.iter.name in lists:
                yield node, rest
        elif isinstance(node, nodes.If):
            for branch in (node.body, node.else_, *(each.body for each in node.elif_)):
                for loop, inner in _loops(branch, lists):
                    yield loop, [*inner, *rest]


def _looks_back(loop: nodes.For) -> bool:
    """Return whether a loop reads of Jinja's `loop` only what no later message changes."""
    inside = [*_of_loop([*loop.body, *([loop.test] if loop.test else [])])]
    asked = {
        id(each.node)
        for each in inside
        if (isinstance(each, nodes.Getattr) and each.attr in _BEHIND)
        or (isinstance(each, nodes.Getitem) and getattr(each.arg, "value", None) in _BEHIND)
    }
    return all(
        id(each) in asked for each in inside if isinstance(each, nodes.Name) and each.name == "loop"
    )


def _of_loop(body: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
    """Yield the nodes in a loop's body in which `loop` means this loop, not an inner one."""
    for node in body:
        yield node
        inner = [node.iter] if isinstance(node, nodes.For) else node.iter_child_nodes()
        yield from _of_loop(inner)

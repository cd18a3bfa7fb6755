"""SGLang's router against a tree of characters, and what its tree forgets."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import pytest

from kvscope.routers.sglang import Sglang
from tests.routers.scripted import CHARACTERS_PER_TOKEN, Script, decide, scripted

INTERVAL_S = 5.0


@dataclass(eq=False)
class Node:
    """A node of a radix tree of texts: the epoch of each replica that has it, 0 for no time."""

    text: str
    parent: Node | None
    owner: int
    epochs: dict[int, int] = field(default_factory=dict)
    children: dict[str, Node] = field(default_factory=dict)

    def is_leaf(self, replica: int) -> bool:
        """Return True if the replica has this node and none below."""
        below = any(replica in child.epochs for child in self.children.values())
        return self.parent is not None and replica in self.epochs and not below


class TextTree:
    """The tree of sglang-router 0.3.2 as its source has it, in characters and with a heap.

    Where an owner was evicted, any other replica gets the node: of two replicas the other one.
    """

    def __init__(self, replicas: int) -> None:
        self.root = Node("", None, 0)
        self.epoch = replicas * (replicas + 1) // 2
        self.size = [0] * replicas

    def match(self, text: str) -> tuple[int, int]:
        """Return how many characters match, and the owner of the deepest node touched."""
        node, matched = self.root, 0
        while child := node.children.get(text[matched : matched + 1]):
            common = _common(child.text, text[matched:])
            node, matched = child, matched + common
            if common < len(child.text):
                break
        if node.epochs and node.owner not in node.epochs:
            node.owner = min(node.epochs)
        if node.parent and self.epoch % 8 == 0:
            node.epochs[node.owner] = self.epoch
        self.epoch += 1
        return matched, node.owner

    def insert(self, text: str, replica: int) -> None:
        """Add a text as one of a replica."""
        node = self.root
        while text:
            child = node.children.get(text[0])
            if child is None:
                child = node.children[text[0]] = Node(text, node, replica)
            common = _common(child.text, text)
            if common < len(child.text):
                upper = Node(child.text[:common], node, child.owner, dict(child.epochs))
                child.text, child.parent = child.text[common:], upper
                upper.children[child.text[0]] = child
                node.children[text[0]] = child = upper
            if replica not in child.epochs:
                child.epochs[replica] = 0
                self.size[replica] += common
            node, text = child, text[common:]
        node.epochs[replica] = self.epoch
        self.epoch += 1

    def evict(self, most: int) -> None:
        """Take the leaves with the lowest epochs, until no replica has more than `most`."""
        heap: list[tuple[int, int, int, Node]] = []
        pending = [self.root]
        while pending:
            node = pending.pop()
            pending += node.children.values()
            for replica in node.epochs:
                if node.is_leaf(replica):
                    heap.append((node.epochs[replica], len(heap), replica, node))
        heapq.heapify(heap)
        count = len(heap)
        while heap:
            _, _, replica, node = heapq.heappop(heap)
            if self.size[replica] <= most:
                continue
            self.size[replica] -= len(node.text)
            del node.epochs[replica]
            assert node.parent is not None
            if not node.epochs:
                del node.parent.children[node.text[0]]
            if node.parent.is_leaf(replica):
                count += 1
                heapq.heappush(heap, (node.parent.epochs[replica], count, replica, node.parent))


def _common(one: str, other: str) -> int:
    """Return how many leading characters two texts share."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def expected(script: Script, router: Sglang, replicas: int, times: list[float]) -> list[int]:
    """Return the choices by the tree of characters."""
    threshold, requests, factor, _, most, _ = (float(value) for value in router.settings())
    tree = TextTree(replicas)
    load, choices, evictions = [0] * replicas, [], 0
    for number in range(len(script.requests)):
        for earlier in script.finished_before(number):
            load[choices[earlier]] -= 1
        if int(times[number] / INTERVAL_S) > evictions:
            evictions = int(times[number] / INTERVAL_S)
            tree.evict(int(most))
        text = script.text(number)
        choice = load.index(min(load))
        if max(load) - min(load) <= requests or max(load) <= min(load) * factor:
            matched, owner = tree.match(text)
            if matched / len(text) > threshold:
                choice = owner
        tree.insert(text, choice)
        load[choice] += 1
        choices.append(choice)
    return choices


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("replicas", "requests", "most", "threshold"),
    [
        (4, 64, 2**26, 0.3),
        (4, 3, 2**26, 0.3),
        (2, 64, 600, 0.3),
        (2, 3, 600, 0.3),
        (2, 3, 600, 0.8),
    ],
    ids=["calm", "busy", "small", "small and busy", "small and strict"],
)
def test_choices_are_those_of_a_tree_of_characters(
    seed: int, replicas: int, requests: int, most: int, threshold: float
) -> None:
    script = scripted(600, seed)
    times = [number / 20 for number in range(600)]
    router = Sglang(
        {
            "cache_threshold": threshold,
            "balance_abs_threshold": requests,
            "balance_rel_threshold": 1.1,
            "max_tree_chars": most,
            "eviction_interval_s": INTERVAL_S,
            "characters_per_token": CHARACTERS_PER_TOKEN,
        }
    )
    choices = list(decide(router, script, replicas, times=times))
    assert choices == expected(script, router, replicas, times)
    assert len(set(choices)) == replicas


def test_evicted_nodes_are_used_again() -> None:
    script = scripted(800, 1)
    small = Sglang({"max_tree_chars": 400, "eviction_interval_s": 1, "characters_per_token": 2})
    memory = small.memory(script.sizes(2), 1)
    assert len(list(decide(small, script, 2, memory, [number / 5 for number in range(800)]))) == 800
    tree = memory.tree
    nodes = tree.counters[1]
    assert nodes < 150
    on_tree = set(tree.node_of.tolist()) - {0}
    assert on_tree
    assert max(on_tree) < nodes
    assert not any(tree.tail_tokens[tree.parent[node]] for node in on_tree)  # tails end texts
    assert tree.replica_tokens.max() < 2 * 400


def test_one_replica_gets_all_that_never_meets_another() -> None:
    """Of equals the first: requests one after the other all go to one replica."""
    script = scripted(50, 2, apart=0)
    alone = script._replace(requests=[request._replace(in_flight=1) for request in script.requests])
    assert set(decide(Sglang(), alone, 4)) == {0}


def test_flags_are_those_of_the_launcher() -> None:
    assert " ".join(Sglang({"balance_abs_threshold": 8}).flags()) == (
        "--policy cache_aware --cache-threshold 0.3 --balance-abs-threshold 8 "
        "--balance-rel-threshold 1.5 --eviction-interval-secs 60 --max-tree-size 67108864"
    )

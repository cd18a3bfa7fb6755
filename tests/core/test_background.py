"""Work in a second thread: its answer, its errors, and the order in which they come."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, get_ident

import pytest

from kvscope.core.background import consume_in_background, in_background


def test_the_call_runs_while_the_caller_goes_on() -> None:
    """The call can wait for what the caller does after it has begun it."""
    done = Event()
    future = in_background(lambda: (done.wait(10), get_ident()))
    done.set()
    seen, thread = future.result()
    assert seen
    assert thread != get_ident()


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    """Each time."""
    future = in_background(int, "no number")
    for _ in range(2):
        with pytest.raises(ValueError, match="no number"):
            future.result()


def test_items_are_used_in_order_and_all_of_them() -> None:
    """Whether there are many, one or none."""
    for count in (0, 1, 2, 50):
        used: list[int] = []
        consume_in_background(used.append, range(count))
        assert used == list(range(count))


def test_no_more_than_two_items_are_there_at_once() -> None:
    """One is used while the next is made: the one after it is made when the first is done."""
    made: list[int] = []
    used: list[int] = []

    def items() -> Iterator[int]:
        for item in range(20):
            assert len(used) >= item - 1
            made.append(item)
            yield item

    consume_in_background(used.append, items())
    assert used == made == list(range(20))


def test_the_error_of_an_item_comes_before_that_of_making_the_next() -> None:
    """As if one had been done after the other."""
    making_failed = Event()

    def items() -> Iterator[int]:
        yield 1
        making_failed.set()
        raise OSError("making the second failed")

    def use(item: int) -> None:
        making_failed.wait(10)
        raise ValueError(f"item {item} is no good")

    with pytest.raises(ValueError, match="item 1 is no good"):
        consume_in_background(use, items())


def test_nothing_is_used_after_an_error() -> None:
    """And no item is made beyond the one that was on its way."""
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(10):
            made.append(item)
            yield item

    def use(item: int) -> None:
        if item == 3:
            raise ValueError(item)

    with pytest.raises(ValueError, match="3"):
        consume_in_background(use, items())
    assert made == [0, 1, 2, 3, 4]


def test_an_interrupt_in_making_waits_for_the_use_and_comes_out() -> None:
    """What is half used would be changed under the caller's hands."""
    interrupted = Event()
    used: list[int] = []

    def items() -> Iterator[int]:
        yield 1
        interrupted.set()
        raise KeyboardInterrupt

    def use(item: int) -> None:
        interrupted.wait(10)
        used.append(item)

    with pytest.raises(KeyboardInterrupt):
        consume_in_background(use, items())
    assert used == [1]

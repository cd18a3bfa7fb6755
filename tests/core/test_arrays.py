"""The distinct numbers of arrays."""

import numpy as np

from kvscope.core.arrays import distinct


def test_distinct_numbers_ascend() -> None:
    """As NumPy finds them, of the same type; of no numbers none."""
    one, other = np.array([[5, 3, 5, -1], [3, 7, 7, 5]], dtype=np.int32)
    assert distinct(one, other).tolist() == np.unique([one, other]).tolist() == [-1, 3, 5, 7]
    assert distinct(one).dtype == np.int32
    assert distinct(one[:0]).tolist() == []

"""Compressed attention (DeepSeek-V4): one KV entry for several tokens, and a short window.

Every layer caches the latest tokens uncompressed. A layer with ratio 4 or 128 also caches one entry
per 4 or 128 tokens, and a state: 32-bit sums over the tokens of its next entry. Layers of ratio 4
have an indexer with keys and sums of its own; it chooses the entries that a token attends to.

vLLM puts these caches into four buckets: entries with the indexers' keys, windows, and the states
of either ratio. All blocks of a bucket span equally many tokens. A page is the part of a block that
holds one cache of one layer: entries, keys, latest tokens, or sums.

Source: vLLM 0.32.0, vllm/models/deepseek_v4/attention.py and compressor.py,
vllm/v1/attention/backends/mla/sparse_swa.py (fp8_ds_mla, the layout of NVIDIA's GPUs) and
vllm/v1/core/kv_cache_utils.py (_get_packed_kv_cache_groups).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from kvscope.core.errors import InputError
from kvscope.deployment.config_fields import ConfigFields
from kvscope.deployment.kv_groups import KvGroup, KvGroups

BLOCK = 256  # tokens of a block with entries
_WINDOW_BLOCK = 64
_STATE_BLOCKS: Mapping[int, int] = {4: 4, 128: 8}  # tokens of a block of states, by ratio
_SPARSE = 4  # the ratio of layers with an indexer, whose entries overlap: sums of two
_ALIGNED = 576  # bytes
_SCALED = 64  # values of an entry with one scale, and one byte more
_INDEX_SCALED = 128

Bucket = Literal["entries", "windows", "4", "128"]


class CompressedKv(Struct, frozen=True):
    """The caches of all layers, in 8 bits: `ratios` by layer, 0 for a window alone.

    An entry has `size` values, `rope_size` of them rotary. An indexer has `index_heads` query heads
    and a key for each entry, of `index_size` values each; it chooses `entries` entries for each
    token. A window has `window` tokens. With `of_block`, which `Model.by_block` sets to size a
    pool, `values_per_token` is a quarter of the bytes of a block: a pool counts every block as 4
    tokens, those of the smallest block of any group.
    """

    ratios: tuple[int, ...]
    size: int
    rope_size: int
    index_size: int
    index_heads: int
    window: int
    entries: int
    of_block: bool = False

    @classmethod
    def of(cls, config: ConfigFields) -> CompressedKv:
        """Return the caches that a config describes. Raises InputError for unknown ratios."""
        layers, ratios = config.count("num_hidden_layers"), config.get("compress_ratios")
        ratios = ratios[:layers] if isinstance(ratios, list) else []
        known = all(each in (0, 1, *_STATE_BLOCKS) for each in ratios)
        if len(ratios) < layers or not known or _SPARSE not in ratios:
            what = "compress_ratios does not list 0, 4 and 128 for the layers"
            remedy = "leave --model out, and state --num-gpu-blocks and --latency"
            raise InputError(what, where=config.where, remedy=remedy)
        return cls(
            tuple(ratio if ratio > 1 else 0 for ratio in ratios),
            config.count("head_dim"),
            config.count("qk_rope_head_dim"),
            config.count("index_head_dim"),
            config.count("index_n_heads"),
            config.count("sliding_window"),
            config.count("index_topk"),
        )

    @property
    def layers(self) -> int:
        """Number of all layers."""
        return len(self.ratios)

    @property
    def sparse_layers(self) -> int:
        """Number of layers with an indexer, which chooses the entries to attend to."""
        return self.ratios.count(_SPARSE)

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry: 8 bits a value and their scales, 16 bits for the rotary part."""
        plain = self.size - self.rope_size
        return plain + 2 * self.rope_size + plain // _SCALED + 1

    @property
    def index_bytes(self) -> int:
        """Bytes of an indexer's key: 8 bits a value, and a scale in 32 bits."""
        return self.index_size + 4 * (self.index_size // _INDEX_SCALED)

    @property
    def values_per_token(self) -> int:
        """KV bytes per token: of entries alone; with `of_block`, a quarter of a pool's block."""
        if self.of_block:
            return self.block_bytes // min(_STATE_BLOCKS.values())
        return -(-sum(size * count for size, count in self._pages("entries").items()) // BLOCK)

    def values_on_rank(self, tp: int) -> int:
        """Return `values_per_token`, in bytes: every rank caches all of it."""
        return self.values_per_token

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of the pool, which the largest block of any group sets."""
        return max(
            sum(size * -(-count // groups) for size, count in self._pages(bucket).items())
            for bucket, groups in self._group_counts().items()
        )

    @property
    def read_bytes(self) -> tuple[float, float]:
        """Bytes that decoding a token reads: per token of context, and a constant part."""
        sparse, dense = self.sparse_layers, self.layers - self.sparse_layers
        each = sparse * self.index_bytes / _SPARSE
        each += self.ratios.count(128) * self.entry_bytes / 128
        besides = self.window * (sparse + dense) + self.entries * sparse
        return each, float(besides * self.entry_bytes)

    def look_flops(self, heads: int) -> tuple[float, float]:
        """Return a token's attention FLOPs in all layers: per earlier token, and a constant.

        Per earlier token: the indexers' scores, and attention to entries of ratio 128. Constant:
        attention to the window and to chosen entries. `heads` are the model's query heads.
        """
        entry, key = 4.0 * heads * self.size, 2.0 * self.index_heads * self.index_size
        each = self.sparse_layers * key / _SPARSE + self.ratios.count(128) * entry / 128
        return each, entry * (self.window * self.layers + self.entries * self.sparse_layers)

    def kv_groups(self) -> KvGroups:
        """Return vLLM's groups: one of entries, others of windows and of states.

        A request holds only its latest windows and states. Their groups have 0 `layers`, so that
        `KvGroups.layer_share` is that of the entries alone.
        """
        groups: list[KvGroup] = []
        for bucket, number in self._group_counts().items():
            if bucket == "entries":
                groups.append(KvGroup("full", BLOCK, layers=self.layers))
                continue
            ratio = 0 if bucket == "windows" else int(bucket)
            size = _STATE_BLOCKS.get(ratio, _WINDOW_BLOCK)
            window = self.window if not ratio else ratio * (2 if ratio == _SPARSE else 1)
            groups += [KvGroup("sliding", size, window, layers=0)] * number
        return KvGroups(tuple(groups))

    def _pages(self, bucket: Bucket) -> dict[int, int]:
        """Return the pages of all layers in a bucket: their number by page size in bytes."""
        sparse, dense = self.sparse_layers, self.ratios.count(128)
        if bucket == "windows":
            return {_page(_WINDOW_BLOCK * self.entry_bytes): self.layers}
        if bucket == "entries":
            of_a_block, pages = BLOCK // _SPARSE, dict[int, int]()
            for size, count in (
                (of_a_block * self.entry_bytes, sparse),
                (of_a_block * self.index_bytes, sparse),
                (BLOCK // 128 * self.entry_bytes, dense),
            ):
                pages[_page(size)] = pages.get(_page(size), 0) + count
            return pages
        ratio = int(bucket)
        sums = 8 * _STATE_BLOCKS[ratio] * (2 if ratio == _SPARSE else 1)  # keys and scores
        states = {_page(sums * self.size): self.ratios.count(ratio)}
        return states | ({_page(sums * self.index_size): sparse} if ratio == _SPARSE else {})

    def _group_counts(self) -> dict[Bucket, int]:
        """Return the number of groups in each bucket, in the order in which layers use the buckets.

        A bucket with equally many pages of each size is divided into groups of `_group_size`
        layers, any other is one group. That size is at least the number of layers of ratio 4, so
        their states, in pages of two sizes, are one group.
        """
        order: dict[Bucket, None] = {}
        for ratio in self.ratios:
            if ratio == _SPARSE:
                order |= dict.fromkeys(("entries", "4", "windows"))
            elif ratio:
                order |= dict.fromkeys(("windows", "entries", "128"))
            else:
                order["windows"] = None
        most = {bucket: max(self._pages(bucket).values()) for bucket in order}
        even = [bucket for bucket in order if len(set(self._pages(bucket).values())) == 1]
        least = max(most[bucket] for bucket in even if len(self._pages(bucket)) > 1)
        size = _group_size([most[bucket] for bucket in even], least)
        return {bucket: math.ceil(most[bucket] / size) if bucket in even else 1 for bucket in order}


def _page(size: int) -> int:
    """Return `size` bytes rounded up to the alignment of pages."""
    return -(-size // _ALIGNED) * _ALIGNED


def _group_size(counts: Sequence[int], least: int) -> int:
    """Return the layers of a group, at least `least`, that divide all `counts` best.

    `counts` are the layers of the buckets. Best: the fewest layers are missing in the last groups
    of all buckets together; among equals, the most layers.

    Source: vLLM 0.32.0, kv_cache_utils.py (_approximate_gcd).
    """
    sizes = range(least, max(*counts, least) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size))

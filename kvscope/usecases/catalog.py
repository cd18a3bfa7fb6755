"""Records that list commands show: policies, routers, models, formats, traces, runs, stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from kvscope.app.run_figures import StoredRun
from kvscope.core.trace import Trace
from kvscope.deployment.compressed import CompressedKv
from kvscope.deployment.models import HeadKv, LatentKv, Model, UnlikeKv
from kvscope.latency.profile import DEFAULT_PROFILE, MODELS, LatencyProfile

if TYPE_CHECKING:
    from kvscope.ingest.formats.base import TraceFormat
    from kvscope.ingest.formats.exporter import Exporter
    from kvscope.policies.base import Policy
    from kvscope.report.stored import StoredReport
    from kvscope.routers.base import Router
    from kvscope.store.doctor import Saved, StoreHealth


class ListedPolicy(Struct, frozen=True):
    """An eviction policy; `engines` run it, some with a plugin; empty: only a simulation can."""

    DOCUMENT: ClassVar[str] = "*policy engines parameters=policy.parameters"
    policy: type[Policy]

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that can run it with its default parameters."""
        from kvscope.tuning.flags import flags

        if self.policy.hindsight:
            return ()
        known = flags(self.policy())
        vllm = "vllm with kvscope's plugin" if known.vllm_needs_plugin else "vllm"
        able = {vllm: known.vllm, "sglang": known.sglang}
        return tuple(name for name, text in able.items() if text is not None)


class ListedRouter(Struct, frozen=True):
    """A router; its name includes the version of the program whose rule it follows.

    Of its attributes in the document, `sees` is the information behind its choices, `needs` what a
    trace must have. `draws`: it chooses at random. `reference`: no program offers it. `flags`
    are its launch flags with default parameters.
    """

    DOCUMENT: ClassVar[str] = "*router flags parameters=router.parameters"
    router: type[Router]

    @property
    def flags(self) -> tuple[str, ...]:
        """The router's launch flags with default parameters."""
        return self.router().flags()


class ListedModel(Struct, frozen=True):
    """A model preset with the bytes of KV cache that one token takes."""

    DOCUMENT: ClassVar[str] = (
        "name=model.name summary source=model.source kv_dtype=model.dtype"
        " bytes_per_token=model.bytes_per_token notes=model.notes"
    )
    model: Model

    @property
    def summary(self) -> str:
        """The model's attention layers."""
        return _layers(self.model.shape)


class ListedLatency(Struct, frozen=True):
    """TTFT preset: base + per_token u + per_token_pair u (c + u / 2); u new, c cached tokens."""

    DOCUMENT: ClassVar[str] = (
        "name=profile.name summary source=profile.source model default base_s=profile.base_s"
        " per_token_s=profile.per_token_s per_token_pair_s=profile.per_token_pair_s"
    )
    profile: LatencyProfile

    @property
    def summary(self) -> str:
        """The profile's base and time per uncached token; the pair term is left out."""
        base, token = self.profile.base_s * 1e3, self.profile.per_token_s * 1e6
        return f"{base:.3g} ms + {token:.3g} us per uncached token"

    @property
    def model(self) -> str | None:
        """The model that the profile was measured with; None if unknown."""
        return MODELS.get(self.profile.name)

    @property
    def default(self) -> bool:
        """Whether commands use this preset if none is named."""
        return self.profile.name == DEFAULT_PROFILE


class ListedFormat(Struct, frozen=True):
    """A trace format that kvscope reads or writes.

    `source` says where the format is described: a program and its version, or a paper. Of a format
    that is read, `has_hashes` says whether its traces have block hashes; of one that is only
    written, whether it cannot hold a trace without them.
    """

    name: str
    summary: str
    source: str
    reads: bool
    writes: bool
    has_hashes: bool

    @classmethod
    def read(cls, known: type[TraceFormat], *, writes: bool) -> ListedFormat:
        """Return the entry of a format that kvscope reads and, if `writes`, writes."""
        words = known.name, known.summary, known.source
        return cls(*words, reads=True, writes=writes, has_hashes=known.has_hashes)

    @classmethod
    def written(cls, known: type[Exporter]) -> ListedFormat:
        """Return the entry of a format that kvscope only writes."""
        words = known.name, known.summary, known.source
        return cls(*words, reads=False, writes=True, has_hashes=known.needs_hashes)


def _layers(shape: HeadKv | LatentKv | UnlikeKv | CompressedKv) -> str:
    if isinstance(shape, CompressedKv):
        few, many = (shape.ratios.count(ratio) for ratio in (4, 128))
        return f"{shape.layers} layers, {few} with an entry for 4 tokens, {many} for 128"
    if isinstance(shape, UnlikeKv):
        return f"{_layers(shape.full)}; {_layers(shape.windowed)}"
    if isinstance(shape, HeadKv):
        return f"{shape.layers} layers, {shape.kv_heads} KV heads of {shape.head_size}"
    return f"{shape.layers} layers, latent {shape.latent_size} + rope {shape.rope_size}"


class StoredTrace(Struct, frozen=True):
    """A trace with all facts that a store has of it."""

    DOCUMENT: ClassVar[str] = (
        "*trace source=trace.source has_users=trace.has_users lines=trace.lines"
        " out_of_order=trace.out_of_order notes=trace.notes"
    )
    trace: Trace


class IngestedTrace(StoredTrace, frozen=True):
    """An ingested trace; `created` is false if the store had it already."""

    DOCUMENT: ClassVar[str] = f"{StoredTrace.DOCUMENT} created"
    created: bool


class IngestedTraces(Struct, frozen=True):
    """The traces that `kvscope ingest` read, in the order of the paths; `trace` is the last one."""

    DOCUMENT: ClassVar[str] = "trace ingested"
    ingested: tuple[IngestedTrace, ...]

    @property
    def trace(self) -> Trace:
        """The trace that was read last."""
        return self.ingested[-1].trace


class CheckedStore(Struct, frozen=True):
    """The health of a store, found by `kvscope doctor`.

    `fault`, of its health, says why the traces cannot be listed; empty if they can. `saved` lists
    what `--save-to` copied, null without this option.
    """

    DOCUMENT: ClassVar[str] = (
        "store=health.path sound=health.is_sound fault=health.fault traces=health.traces saved"
    )
    health: StoreHealth
    saved: Saved | None


class StoredResults(Struct, frozen=True):
    """The runs that the store keeps of a trace, and the reports of `tune` and `fleet`."""

    trace: Trace
    runs: tuple[StoredRun, ...]
    reports: tuple[StoredReport, ...]

"""The options of the use cases, declared once: type, how a value is written, and its help.

    hbm: int | None = option("GPU memory, for example 80GiB.", "SIZE", values.size)

Classes share an option as an annotation: `Hbm = Annotated[int | None, Option(...)]`. The command
line makes its options of these classes, the Python API its keyword arguments. Fields hold
plain values: bytes, seconds, tokens, blocks, shares from 0 to 1. This module loads neither numpy
nor a kernel, so that `--help` is quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct, StructMeta

from kvscope.app import values
from kvscope.core import units
from kvscope.core.errors import UsageError, placed
from kvscope.core.files import file_identity, files_of, missing_from
from kvscope.core.records import defaults
from kvscope.deployment.models import KvDtype as Precision
from kvscope.deployment.quantization import WeightDtype
from kvscope.fleet.options import Scaling
from kvscope.store.folder import is_dataset

DEFAULT_POINTS = 5
FURTHER = "Further options"
USUAL = frozenset(
    {
        *("gpu", "model", "replicas", "gpu_hour", "slo", "percentile", "also", "compare_tiers"),
        *("policy", "capacity", "tiers", "points", "request", "recommendation", "window", "html"),
        "as_json",
    }
)
"""Fields of options that people use first: the help of a command begins with those that it has."""
RARE = frozenset({"debug", "force", "forget"})
"""Options of commands themselves that the help lists under the heading FURTHER."""

EARLIER: Mapping[str, Mapping[str, str]] = {
    "simulate": {"policies": "policy"},
    "tune": {"policies": "policy", "tiers": "compare-tiers", "tier-sizes": "tier-size"},
    "fleet": {"offload": "tier-size", "seeds": "router-seeds"},
    "validate": {
        "policies": "replay",
        "outputs": "answers",
        "blocks": "capacity-blocks",
        "minutes": "until",
    },
    "watch": {"window": "window-requests"},
    "hash": {"from": "format"},
}
"""Earlier names of options and the present ones, by command; the next version drops them."""

T = TypeVar("T")


class Option(Struct, frozen=True):
    """One option: its help, and how its value is written and parsed.

    `default` describes the default in words. `flags` replaces the flag made of the field's name; an
    `argument` is positional and has no flag. `value` is the field's default where a class assigns
    the Option to the field. Options of one kind of value are made by a function of its name, such
    as `Time` (a duration), `Share`, `Count`, `Size`, or `Target` (an output file).
    """

    help: str
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    default: str | None = None
    flags: tuple[str, ...] = ()
    argument: bool = False
    value: Any = None


class _Declared(StructMeta):
    """Metaclass that accepts an Option as the default of a field."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any
    ) -> Any:
        """Create a class whose fields default to the values of their Options."""
        own = {each: value for each, value in namespace.items() if isinstance(value, Option)}
        plain = namespace | {each: option.value for each, option in own.items()}
        made: Any = super().__new__(cls, name, bases, plain, **config)
        made.declared = getattr(made, "declared", {}) | own
        return made


class Options(Struct, metaclass=_Declared, frozen=True, kw_only=True):
    """Base class of option records; `declared` maps each field assigned an Option to the Option."""


option: Callable[..., Any] = Option
Time = partial(option, metavar="TIME", parse=values.duration)
Share = partial(option, metavar="SHARE", parse=units.parse_share)
PositiveShare = partial(option, metavar="SHARE", parse=values.share)
Count = partial(option, metavar="N", parse=values.whole(1))
Seed = partial(option, metavar="N", parse=values.whole(0, 2**63 - 1))
Blocks = partial(option, metavar="N", parse=values.amount("blocks"))
Tokens = partial(option, metavar="TOKENS", parse=values.amount("tokens"))
Size = partial(option, metavar="SIZE", parse=values.size)
Names = partial(option, metavar="NAME,...", parse=str.lower)
Sizes = partial(option, metavar="SIZE,...", parse=values.listed(values.size))
Called = partial(option, parse=values.called)
Source = partial(Called, metavar="PATH")
Target = partial(option, metavar="PATH", parse=values.target)
Latency = partial(
    option,
    "TTFT of the engine: the file that `kvscope calibrate` writes, a preset, or `trace`: fitted to"
    " the TTFTs in the trace.",
    "PROFILE",
)

OUTPUT = ("--output", "-o")
TraceFile = Annotated[
    str,
    Option(
        "File to write; .gz and .zst compress, - is standard output.",
        "PATH",
        values.target,
        flags=OUTPUT,
    ),
]
Model = Annotated[
    str | None,
    Option("Model: a preset (see `kvscope models`) or the path of a config.json.", "MODEL"),
]
KvDtype = Annotated[Precision | None, Option("Precision of the KV cache, if not the model's own.")]
Hbm = Annotated[
    int | None,
    Size("GPU memory, for example 80GiB; sizes are also shown as multiples of it."),
]
Capacities = Annotated[
    tuple[int, ...] | None,
    Sizes("Capacities, for example 10GiB,20GiB; needs --model."),
]
CapacitiesBlocks = Annotated[
    tuple[int, ...] | None,
    Option("Capacities in blocks.", "N,...", values.listed(values.amount("blocks"))),
]
Compat = Annotated[
    Literal["kvcache-simulator", "libcachesim"] | None, Option("Count hits as this tool does.")
]
Outputs = Annotated[
    Literal["carried", "ignored"],
    Option("Whether the output of a turn stays cached for the next turn."),
]
Warmup = Annotated[
    float,
    Share(
        "Share of the requests, from the start, that fill the cache and are not counted.",
        default="0",
    ),
]
Until = Annotated[float | None, Time("Only requests before this time after the trace's start.")]
Slo = Annotated[
    float | None,
    Time(
        "TTFT threshold, for example 200ms: counts violations and TEL, and sets xi for the policies"
        " that have one."
    ),
]
SloToMeet = Annotated[
    float | None, Time("TTFT threshold to meet, for example 200ms.", default="as stated before")
]
Percentile = Annotated[
    float | None,
    Option("TTFT percentile that must meet the SLO.", "pN", values.percentile, "p95"),
]
Params = Annotated[
    list[str] | None,
    Option(
        "Set a parameter of a policy, for example tlru.xi_tokens=2000 or tlru.leaves=any; several"
        " values are replayed each. Repeatable.",
        "POLICY.NAME=VALUE,...",
    ),
]
Autoscale = Annotated[
    Scaling | None,
    Option(
        "Also replay the answer with replicas that Kubernetes adds and removes for a target of RATE"
        " requests a second each, for example 2..8@0.5. A new one is empty, and serves after 60 s"
        " (:ready=TIME).",
        "LOW..HIGH@RATE[:ready=TIME]",
        values.autoscaling,
    ),
]
Disaggregate = Annotated[
    float | None,
    Option(
        "Also let some replicas prefill and others decode. Each sends KV over a link of this"
        " bandwidth, for example 50GB/s.",
        "BANDWIDTH",
        units.parse_bandwidth,
    ),
]
RateScale = Annotated[float, Option("Multiply the arrival rate by this factor.", "FACTOR")]
_CLUSTER = (
    "HOST:PORT of its head, ray://HOST:PORT of its Ray Client server, or ray (of RAY_ADDRESS, else"
    " one on this machine)."
)
On = Annotated[
    str | None,
    Option(
        f"Ray cluster that replays, one replay a core: {_CLUSTER}",
        "CLUSTER",
        values.cluster,
        "threads of this machine",
    ),
]
Isolate = Annotated[
    Literal["user", "conversation"] | None,
    Option("Share no blocks between users or conversations (cache salts)."),
]

TimeModel = Literal["queue", "engine"]
Tp = Annotated[int | None, Count("GPUs of a replica (tensor parallelism).", default="1")]
Utilization = Annotated[
    float | None,
    PositiveShare("Share of the GPU's memory for the engine.", default="the engine's"),
]
DeploymentFile = Annotated[
    str | None,
    Source("File that states the deployment; - for none.", default="./kvscope.toml if present"),
]


class ReplicaOptions(Options, frozen=True, kw_only=True):
    """Options that describe one replica, and whether the trace holds its traffic or the fleet's.

    An option wins over the same key of a kvscope.toml, and the file over earlier commands. A
    subclass can set the class variable `beside_pool`, as `AnalyzeOptions` does: a capacity is then
    reported next to the deployment's pool instead of replacing it.
    """

    group: ClassVar[str] = "Deployment"
    beside_pool: ClassVar[bool] = False
    gpu: str | None = Called("GPU of the deployment, for example h100 (see `kvscope gpus`).", "GPU")
    tp: Tp = None
    dp: int | None = Count(
        "Data-parallel ranks of the engine, which divide the experts: each has --tp GPUs, a pool of"
        " its own, and counts as a replica.",
        default="1",
    )
    model: Model = None
    weight_dtype: WeightDtype | None = option("Precision of the weights, if not the model's own.")
    kv_dtype: KvDtype = None
    gpu_memory_utilization: Utilization = None
    max_num_seqs: int | None = Count(
        "Limit of running requests per replica.", default="by GPU, as vLLM"
    )
    max_num_batched_tokens: int | None = Tokens(
        "Limit of tokens per step.", default="by GPU, as vLLM"
    )
    max_model_len: int | None = Tokens(
        "Longest request, prompt and output, that the engine takes.", default="the model's"
    )
    engine: str | None = Called("Engine and version.", "ENGINE", default="vllm@0.33")
    speculative: str | None = Called(
        "Speculative decoding: mtp, eagle, eagle3 or ngram, with the tokens that a step drafts and,"
        " behind @, those that it yields on average: mtp:3@2.4.",
        "METHOD:TOKENS",
        default="none",
    )
    num_gpu_blocks: int | None = Blocks(
        "KV blocks of a replica, as the engine reports them.", default="derived"
    )
    engine_log: str | None = Source(
        "Log of the engine's start, or saved text of its /metrics: states the KV blocks."
    )
    latency: str | None = Latency(
        default="of the trace, else derived; without a GPU llama2-7b-a100"
    )
    gpu_hour: float | None = option("Price of one GPU for an hour.", "PRICE", values.price)
    traffic: Literal["fleet", "replica"] | None = option(
        "Whether the trace holds the fleet's traffic or one replica's.", default="fleet"
    )
    deployment: DeploymentFile = None


class DeploymentOptions(ReplicaOptions, frozen=True, kw_only=True):
    """Options that describe a deployment: a replica and the number of replicas."""

    replicas: int | None = Count("Replicas of the engine that serve the traffic.", default="1")


class Reading(Options, frozen=True, kw_only=True):
    """How to read a trace that the store does not have yet.

    `turns` says whether a session's rows each hold the whole prompt ("whole") or what is new
    ("delta"); None: as the rows show. `session_arrivals` is the rate (sessions per second) of a
    Poisson process at which sessions without a common clock begin; None: back to back. `strict`
    stops at the first bad line; otherwise a trace with more than the share `max_bad` (0 to 1) of
    bad lines is an error.
    """

    group: ClassVar[str] = "Reading a new trace"

    name: str | None = Called("Name of the trace in the store.", "NAME", default="its file's")
    trace_format: str | None = option(
        "Format of the trace (see `kvscope formats`).",
        "FORMAT",
        default="detected",
        flags=("--format",),
    )
    block_size: int | None = option(
        "Tokens per block, where the trace does not say.", "TOKENS", values.whole(1)
    )
    session_arrivals: float | None = option(
        "Arrival process of sessions that have no common clock, for example poisson:0.5/s.",
        "poisson:RATE",
        values.session_arrivals,
        "back to back",
    )
    seed: int = Seed("Seed of --session-arrivals.", value=0)
    turns: Literal["whole", "delta"] | None = option(
        "What a session's rows hold: each its whole prompt, or only what is new (delta).",
        default="as the rows show",
    )
    strict: bool = option("Stop at the first bad line, with exit code 3.", value=False)
    max_bad: float = Share(
        "Largest share of bad lines; a trace with more is not stored.", default="1%", value=0.01
    )

    def given(self) -> list[str]:
        """Return the flags of the options that differ from their defaults, without values."""
        plain = defaults(type(self))
        changed = [name for name in plain if getattr(self, name) != plain[name]]
        return ["--" + name.removeprefix("trace_").replace("_", "-") for name in changed]


AS_STORED = Reading()


class IntoOptions(Options, frozen=True, kw_only=True):
    """Options to ingest a large trace into a dataset: folder, memory, processes, Ray cluster."""

    into: str | None = Called(
        "Folder for a dataset: all paths as one trace, in shards that fit into memory.", "DIR"
    )
    memory: int | None = Size(
        "With --into: memory of all processes together, on each machine, for example 8GiB.",
        default="half of what is free",
    )
    shards: int | None = option(
        "With --into: number of shards, or auto: as many as --memory needs.",
        "N",
        values.auto_or(values.whole(1, 4096)),
        "auto",
    )
    workers: int | None = option(
        "With --into: number of processes that build shards.", "N", values.whole(1), "one per core"
    )
    on: str | None = option(
        f"With --into: Ray cluster that builds the shards: {_CLUSTER} All nodes need DIR at the"
        " same path.",
        "CLUSTER",
        values.cluster,
        "this machine",
    )


def declared(annotation: object) -> tuple[Any, Option] | None:
    """Return the type and the Option of an annotation, None for one without an Option."""
    if get_origin(annotation) is Annotated:
        kind, *marks = get_args(annotation)
        for mark in marks:
            if isinstance(mark, Option):
                return kind, mark
    return None


def annotations_of(kind: type[Any]) -> dict[str, Any]:
    """Return the annotations of a class; a field with an Option as default is `Annotated` too."""
    own: Mapping[str, Option] = getattr(kind, "declared", {})
    return {
        name: Annotated[hint, own[name]] if name in own else hint
        for name, hint in get_type_hints(kind, include_extras=True).items()
    }


def options_of(kind: type[Struct]) -> dict[str, Option]:
    """Return the declared options of a class, by the names of its fields."""
    hints = annotations_of(kind)
    return {name: pair[1] for name, hint in hints.items() if (pair := declared(hint)) is not None}


def parsed(kind: type[T], written: Mapping[str, object]) -> T:
    """Return the options of class `kind` from `written`; strings are parsed as on a command line.

    A list of strings counts as one string with commas; other values are taken unchanged. Raises
    UsageError that names the option.
    """
    hints = annotations_of(kind)
    return kind(
        **{name: _value(name, hints[name], written[name]) for name in hints.keys() & written}
    )


def typed(options: Struct) -> list[str]:
    """Return command-line words, flags and values, for the options that differ from defaults."""
    plain, words = defaults(type(options)), []
    for name, annotation in annotations_of(type(options)).items():
        pair, value = declared(annotation), getattr(options, name, None)
        if pair is None or name not in plain or value == plain[name] or value is None:
            continue
        flag = next(iter(pair[1].flags), "--" + name.replace("_", "-"))
        several = value if isinstance(value, list) else [value]
        for each in [None] if value is True else several:
            words += [flag] if each is None else [flag, _text(each, pair[1])]
    return words


def _text(value: object, option: Option) -> str:
    """Return a value as typed on a command line, in a unit that the option's parser accepts."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ",".join(_text(each, option) for each in value)
    if option.metavar == "TIME" and isinstance(value, float):
        return f"{round(value * 1e3, 6):.12g}ms"
    if option.parse is units.parse_bandwidth and isinstance(value, float):
        return f"{value / 1e9:.12g}GB/s"
    if option.parse is values.percentile:
        return units.format_percentile(float(str(value)))
    if (option.metavar or "").startswith("SIZE") and isinstance(value, int):
        return f"{value / units.GIB:.12g}GiB"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def arguments_of(kind: type[Struct]) -> set[str]:
    """Return the fields that are positional arguments of the command."""
    return {name for name, option in options_of(kind).items() if option.argument}


def targets_of(kind: type[Struct]) -> list[str]:
    """Return the fields that name an output file (or `-`)."""
    return [name for name, option in options_of(kind).items() if option.parse is values.target]


def check_outputs(writes: Mapping[str, str], reads: Mapping[str, Any]) -> None:
    """Raise UsageError if an output file is also an input, or the output of another option.

    `writes` maps flags to the paths of output files, `reads` names of options to their values, of
    which those that are paths count. Inputs include the store `db`, even before it exists,
    everything in a dataset's folder, the files that an input in TOML names (as a deployment does),
    and the files next to a model. Files are compared by device and inode.
    """
    known: dict[object, str] = {}
    if writes and "trace" in reads and reads.get("deployment") is None:
        from kvscope.deployment.file import FILE  # late: loads what deployments need

        reads = {**reads, "deployment": FILE}
    for name, value in reads.items() if writes else ():
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str):
                known |= dict.fromkeys(map(file_identity, _files_read(name, text)), "is read, too")
    for flag, path in writes.items():
        if path == values.STANDARD_STREAM:
            continue
        place = Path(os.path.realpath(path))
        for each in (place, *place.parents):
            reason = known.get(file_identity(each))
            if reason is not None:
                where, remedy = f"{flag} {path}", "name another file to write"
                raise UsageError(f"the file {reason}", where=where, remedy=remedy)
        known[file_identity(path)] = f"is that of {flag}, too"


def _files_read(name: str, text: str) -> Iterable[str | Path]:
    """Return the files that a command reads for the option `name`; none if `text` is no path."""
    if is_dataset(text):
        return [text]
    if name == "db":
        return [text, f"{text}.wal"]
    if missing_from(text):
        return []
    from kvscope.core.toml_files import files_named_in

    files: list[str | Path] = [*files_of(text)]
    if name in {"tokenizer", "model"}:
        folder = Path(text) if Path(text).is_dir() else Path(text).parent
        files += chain(folder.glob("*.json"), folder.glob("*.jinja"), folder.glob("*/*.jinja"))
    return chain(files, *(files_named_in(Path(each)) for each in files_of(text)))


def standard_output(options: Struct) -> str | None:
    """Return the flag of the option that writes to standard output (`-`), None without one."""
    for name in targets_of(type(options)):
        if getattr(options, name) == "-":
            return "--" + name.replace("_", "-")
    return None


def _value(name: str, annotation: object, value: object) -> object:
    pair = declared(annotation)
    if pair is None or value is None:
        return value
    kind, option = pair
    takes_list = any(get_origin(part) is list for part in (kind, *get_args(kind)))
    if isinstance(value, Sequence) and not isinstance(value, str):
        if takes_list or not all(isinstance(part, str) for part in value):
            return tuple(value)
        value = ",".join(value)
    if not isinstance(value, str):
        takes_several = any(get_origin(part) is tuple for part in (kind, *get_args(kind)))
        return (value,) if takes_several else value
    with placed(name):
        return option.parse(value) if option.parse else values.choice(choices_of(kind))(value)


def choices_of(kind: object) -> tuple[str, ...]:
    """Return the words of the Literal in a type, none for other types."""
    literals = (part for part in (kind, *get_args(kind)) if get_origin(part) is Literal)
    return tuple(str(choice) for part in literals for choice in get_args(part))

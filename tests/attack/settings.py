"""Attacks on what people write for kvscope: files of settings, and the plugin's configuration."""

from __future__ import annotations

import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any

from kvscope.core.errors import KvscopeError
from kvscope.tuning.file import read_policy_file, read_recommendation, verdict_in
from kvscope.vllm_plugin.settings import PluginSettings, read_settings
from tests.attack.attack import Attack, Case
from tests.attack.commands import ROOT, USABLE, command
from tests.attack.mutations import as_json, as_toml, mutated_bytes, mutated_document, odd_value
from tests.vllm_plugin.alone import Alone
from tests.vllm_plugin.fakes import FakeRequest

WRITTEN = ROOT / "tests" / "written_before"
CONFIGS = ROOT / "tests" / "deployment" / "configs"
DEPLOYMENTS = (
    {"schema": 1, "gpu": "h100", "tp": 2, "model": "llama3-70b", "weight_dtype": "fp8"},
    {"schema": 1, "gpu": "l40s", "model": "qwen2-7b", "kv_dtype": "fp8", "gpu_hour": 1.5}
    | {"replicas": 4, "traffic": "fleet", "gpu_memory_utilization": 0.9, "max_num_seqs": 64}
    | {"max_num_batched_tokens": 8192, "block_size": 16, "engine": "vllm@0.33"},
    {"schema": 1, "model": "llama3-8b", "num_gpu_blocks": 5000, "latency": "llama2-7b-a100"},
)
ENGINE_LOG = b"""INFO 07-01 non-default args: {'block_size': 16, 'num_gpu_blocks_override': 1213}
INFO 07-01 Available KV cache memory: 8.11 GiB
INFO 07-01 GPU KV cache size: 163,168 tokens
vllm:cache_config_info{block_size="16",num_gpu_blocks="27000"} 1.0
max_total_num_tokens=445871
"""


class Files(Attack):
    """A file of settings is taken, or one line says which key is wrong; what is taken works."""

    name = "settings"
    target = "kvscope.toml, latency profiles, model config.json, engine logs"
    share = 0.1
    short = 40

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.configs = [json.loads(path.read_bytes()) for path in CONFIGS.glob("*/config.json")]
        self.latency = tomllib.loads((WRITTEN / "latency.toml").read_text())
        self.latency |= {"decode_base_ms": 7.9, "decode_request_ms": 0.018, "floor_ms": 6.0}

    def attempt(self, case: Case) -> int:
        """Show the deployment that one mutated file is a part of."""
        random = case.random
        kind = random.randrange(4)
        words = ["--gpu", "h100", "--model", "llama3-8b"]
        if kind == 0:
            words = ["--deployment", str(_toml(case, "kvscope.toml", random.choice(DEPLOYMENTS)))]
        elif kind == 1:
            words += ["--latency", str(_toml(case, "latency.toml", self.latency))]
        elif kind == 2:
            path = case.folder / "config.json"
            data = as_json(random, mutated_document(random, random.choice(self.configs)))
            path.write_bytes(mutated_bytes(random, data) if random.random() < 0.1 else data)
            words = ["--gpu", "h100", "--model", str(path)]
        else:
            path = case.folder / "engine.log"
            path.write_bytes(mutated_bytes(random, ENGINE_LOG))
            words += ["--engine-log", str(path)]
        if random.random() < 0.3:
            words.append("--json")
        outcome = command("deployment", "show", *words).check(*USABLE)
        if "--json" in words and not outcome.code:
            outcome.document()
        return 1


class Plugin(Attack):
    """No recommendation and no setting stops an engine: refused by a KvscopeError, or it runs."""

    name = "plugin"
    target = "recommendations, policy files, the plugin's settings in vLLM"
    share = 0.1
    short = 200

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        files = [path for path in WRITTEN.glob("*.toml") if path.name != "latency.toml"]
        self.recommendations = [tomllib.loads(path.read_text()) for path in files]
        policies = [document["policy"] for document in self.recommendations]
        self.tables: list[dict[str, Any]] = [
            *({"policy": policy, "record": "folder", "clock": "requests"} for policy in policies),
            {"policy": {"name": "lru", "params": {"ttl_s": 60}}},
            {"recommendation": "recommendation.toml", "record": "folder", "cache_study": 1},
        ]

    def attempt(self, case: Case) -> int:
        """Read one mutated file, or vLLM's mutated configuration, and serve with what is taken."""
        random = case.random
        additional: object = {}
        environment = {}
        if random.random() < 0.6:
            document = random.choice(self.recommendations)
            path = _toml(case, "recommendation.toml", document)
            environment = {"KVSCOPE_RECOMMENDATION": str(path), "KVSCOPE_CACHE_STUDY": "1"}
            for read in (read_recommendation, read_policy_file, verdict_in):
                with contextlib.suppress(KvscopeError):
                    read(path)
        elif random.random() < 0.9:
            additional = mutated_document(random, {"kvscope": random.choice(self.tables)})
        else:
            additional, environment = odd_value(random), {"KVSCOPE_CLOCK": str(odd_value(random))}
        try:
            settings = read_settings(additional, environment)
        except KvscopeError:
            return 1
        _serve(settings)
        return 1


def _toml(case: Case, name: str, document: dict[str, Any]) -> Path:
    """Write the mutated document as TOML, at times with mutated bytes, and return its path."""
    random, path = case.random, case.folder / name
    data = as_toml(random, mutated_document(random, document))
    path.write_bytes(mutated_bytes(random, data) if random.random() < 0.1 else data)
    return path


def _serve(settings: PluginSettings) -> None:
    """Serve a few requests of two conversations from a pool that they do not fit into."""
    if settings.policy is None:
        return
    engine = Alone(settings.policy, 4, 8, settings.fitted)
    for number in range(12):
        blocks = 2 + number // 4
        hashes = [(number % 2, block) for block in range(blocks)]
        request = FakeRequest(str(number), 4 * blocks - 1, 1, hashes)
        engine.arrive(request, 10.0 * number)
        engine.run(request)
        engine.end(request)

"""deploy/kubernetes.yaml: what it names exists in kvscope, and its parts fit together."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvscope.core.files import data_folder
from tests.deploy.container import DOCKERFILE, steps

OPERATORS = ("ServiceMonitor", "PrometheusRule")  # of the Prometheus operator
MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes.yaml"


@pytest.fixture
def parts() -> dict[str, Any]:
    """Return the manifests by their kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFESTS.read_text())}


def test_alerts_are_of_metrics_that_watch_serves(parts: dict[str, Any]) -> None:
    """Another name would never fire; those of the Grafana dashboard are tested on Prometheus."""
    board = (data_folder("grafana") / "kvscope-watch.json").read_text(encoding="utf-8")
    rules = parts["PrometheusRule"]["spec"]["groups"][0]["rules"]
    named = {name for rule in rules for name in re.findall(r"kvscope_\w+", rule["expr"])}
    assert named
    assert named <= set(re.findall(r"kvscope_\w+", board))


def test_containers_share_the_recording_and_its_owner(parts: dict[str, Any]) -> None:
    """`watch` reads the folder that the engine records to, as the same user."""
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    engine, watch = pod["containers"]
    recorded = next(each["value"] for each in engine["env"] if each["name"] == "KVSCOPE_RECORD")
    assert watch["args"][:2] == ["watch", recorded]
    mounted = [
        {each["name"]: each["mountPath"] for each in one["volumeMounts"]} for one in (engine, watch)
    ]
    assert mounted[0] == mounted[1]
    assert {each["name"] for each in pod["volumes"]} == set(mounted[0])
    assert "runAsUser" in pod["securityContext"]
    assert not any("securityContext" in each for each in pod["containers"])


def test_prometheus_finds_watch(parts: dict[str, Any]) -> None:
    """Port, labels and token are those of the service, the container and the secret."""
    monitor, service = parts["ServiceMonitor"]["spec"], parts["Service"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    (port,) = (each for each in service["spec"]["ports"] if each["name"] == endpoint["port"])
    watch = parts["Deployment"]["spec"]["template"]["spec"]["containers"][1]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in watch["ports"]
    secret = endpoint["authorization"]["credentials"]
    assert parts["Secret"]["metadata"]["name"] == secret["name"]
    assert secret["key"] in parts["Secret"]["stringData"]


def test_the_image_does_not_run_as_root() -> None:
    """Its steps are single lines, and the last user is not root."""
    words = steps(DOCKERFILE.read_text(encoding="utf-8"))
    assert [rest for word, rest in words if word == "USER"][-1] == "kvscope"
    assert ("ENTRYPOINT", '["kvscope"]') in words


@pytest.mark.install
def test_manifests_are_as_kubernetes_has_them(parts: dict[str, Any]) -> None:
    """By the schemas of the newest version; those of the operator's kinds are not among them."""
    checked = [each for kind, each in parts.items() if kind not in OPERATORS]
    code = (
        "import json, sys, kubernetes_validate as schemas\n"
        "for manifest in json.load(sys.stdin):\n"
        "    schemas.validate(manifest, schemas.latest_version(), strict=True)"
    )
    uv = (Path(sys.executable).with_name("uv"), "run", "--quiet", "--no-config", "--no-project")
    schemas = ("--with", "kubernetes-validate==1.37.0")
    checks([*uv, "--python", sys.executable, *schemas, "python", "-c", code], checked)


@pytest.mark.install
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm has the operator's schemas")
def test_the_operators_kinds_are_as_it_has_them(parts: dict[str, Any], tmp_path: Path) -> None:
    """By its custom resources' schemas, of a package of npm."""
    package = "@kubernetes-models/prometheus-operator"
    checks(["npm", "install", "--silent", "--prefix", tmp_path, f"{package}@6.0.0"], [])
    code = (
        'import { readFileSync } from "node:fs";\n'
        f'import * as known from "{package}/monitoring.coreos.com/v1";\n'
        "for (const each of JSON.parse(readFileSync(0))) new known[each.kind](each).validate();\n"
    )
    (tmp_path / "check.mjs").write_text(code)
    checks(["node", tmp_path / "check.mjs"], [parts[kind] for kind in OPERATORS])
    parts["ServiceMonitor"]["spec"]["endpoints"][0]["interval"] = 30
    with pytest.raises(AssertionError, match="interval must be string"):
        checks(["node", tmp_path / "check.mjs"], [parts["ServiceMonitor"]])


def checks(command: Sequence[str | Path], manifests: Sequence[dict[str, Any]]) -> None:
    """Run a command on manifests, which has to succeed."""
    text = json.dumps(manifests)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""`kvscope deployment`: the screen, the document, and the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from _pytest.capture import CaptureResult

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode
from kvscope.deployment.deployment import Deployment
from kvscope.deployment.file import read_deployment
from tests.cli.replayed import write_short
from tests.cli.shell import Streams, streams_of

FLEET = [
    *("--gpu", "h100", "--tp", "2", "--replicas", "4", "--model", "llama3-70b"),
    *("--weight-dtype", "fp8", "--gpu-hour", "2.5"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_screen(capsys: Streams) -> None:
    """Summary, pool with its terms, latency with its band, and notes on 45 lines of 100 columns."""
    lines = streams_of(capsys, "deployment", *FLEET).out.splitlines()
    text = "\n".join(lines)
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    assert "4 replicas of 2 x h100, llama3-70b in fp8, vllm@0.33" in text
    assert "14,330 blocks of 16 tokens per replica: 229,280 tokens, derived." in text
    assert "It may be 13,223 to 14,887 blocks." in text
    assert "8 GPUs cost 20.00 an hour." in text
    for name in ("weights", "activations", "other memory", "CUDA graphs", "KV cache", "TPOT of 16"):
        assert name in text


def test_hybrid_models_say_why_no_flags(capsys: Streams) -> None:
    """The reason stands first among the notes; vLLM's hits are simulated, so there is none."""
    written = streams_of(capsys, "deployment", "--gpu", "h100", "--model", "gpt-oss-20b").out
    assert "no engine flags" not in written
    assert "counted in full" not in written
    sglang = "deployment --gpu h100 --engine sglang --model gpt-oss-20b"
    notes = streams_of(capsys, *sglang.split()).out.partition("Notes")[2].splitlines()
    assert notes[1].startswith("- no engine flags: gpt-oss-20b has layers of several kinds")


def all_of(told: CaptureResult[str]) -> str:
    """Return what a command wrote, on one line."""
    return " ".join((told.out + told.err).split())


@pytest.mark.parametrize(
    "command",
    ["tune --slo 1s --policy lru", "explain", "fleet --slo 1s --router session --replicas 1"],
)
def test_requests_that_the_engine_refuses_are_named(
    folder: Path, capsys: Streams, command: str
) -> None:
    """They are replayed all the same; without a stated length there is nothing to say."""
    asked = [*command.split(), write_short(folder), "--gpu", "h100", "--model", "llama3.1-8b"]
    told = "requests have more tokens than --max-model-len 4096: the engine refuses or cuts them"
    assert told in all_of(streams_of(capsys, *asked, "--max-model-len", "4096"))
    assert "more tokens than" not in all_of(streams_of(capsys, *asked, "--max-model-len", "100000"))


def test_created_shown_checked(folder: Path, capsys: Streams) -> None:
    """What `create` writes is what the others read; a file that is there is not replaced."""
    assert run(["deployment", "create", *FLEET]) == ExitCode.DONE
    assert "deployment written to kvscope.toml: 4 replicas" in capsys.readouterr().err
    assert read_deployment(folder / "kvscope.toml") == Deployment(
        gpu="h100", tp=2, replicas=4, model="llama3-70b", weight_dtype="fp8", gpu_hour=2.5
    )
    assert "4 replicas of 2 x h100" in streams_of(capsys, "deployment").out
    assert run(["deployment", "check"]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("kvscope.toml: 4 replicas of 2 x h100")
    assert run(["deployment", "create", "--tp", "4"]) == ExitCode.USAGE
    assert "replace it with --force" in capsys.readouterr().err
    assert run(["deployment", "create", "--tp", "4", "--force"]) == ExitCode.DONE
    assert read_deployment(folder / "kvscope.toml").tp == 4
    (folder / "other.toml").write_text("what was there before")
    replaced = ["deployment", "create", *FLEET, "--output", "other.toml", "--force"]
    assert run(replaced) == ExitCode.DONE
    assert read_deployment(folder / "other.toml").replicas == 4


def test_what_was_said_once_holds(folder: Path, capsys: Streams) -> None:
    """Until a command says otherwise, or --forget; the note names it, whatever names the trace."""
    trace = write_short(folder)
    states = ("--gpu", "h100", "--model", "llama3-8b")
    assert run(["analyze", trace, *states, "--gpu-hour", "2.5"]) == ExitCode.DONE
    assert "As stated before" not in capsys.readouterr().err
    deployment = "1 x h100, llama3-8b, vllm@0.33, 2.50 per GPU and hour"
    for source in ([], [trace], ["short"]):
        out, err = streams_of(capsys, "analyze", *source, "--json")
        assert f"As stated before: {deployment} (--forget starts anew)" in err
        assert json.loads(out)["deployment"]["gpu"] == "h100"
    tune = ["tune", "--policy", "lru", "--output", "-"]
    out, err = streams_of(capsys, *tune, "--slo", "20s", "--percentile", "p90")
    assert deployment in err
    assert "1 x h100, llama3-8b" in out
    out, err = streams_of(capsys, *tune, "--json")
    assert f"{deployment}, SLO p90 TTFT ≤ 20 s (" in err
    assert json.loads(out)["target"]["percentile"] == pytest.approx(0.9)
    assert run([*tune, "--forget"]) == ExitCode.USAGE
    assert "--slo: the SLO is not stated" in capsys.readouterr().err
    assert run(["analyze", "--forget"]) == ExitCode.DONE
    assert "As stated before" not in streams_of(capsys, "analyze").err

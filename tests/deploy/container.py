"""Run the steps of deploy/Dockerfile in a Debian of its own, and its command: no registry needed.

    python -m tests.deploy.container FOLDER [KERNELS]     # as root

FOLDER has a Debian that debootstrap made; what the steps make there is removed before. A step that
fails ends the run with its exit code. The step that compiles kernels finds those in the folder
KERNELS, where they are of this source and for a wheel's CPUs, and compiles the others.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
COMMANDS = (["--version"], ["analyze", "/trace.jsonl.gz"])


class Container:
    """What a Dockerfile's steps have made of a Debian in a folder so far."""

    def __init__(self, root: Path, kernels: Path | None) -> None:
        self.root, self.user, self.folder, self.entry = root, "root", "/", list[str]()
        self.kernels = kernels
        self.environment = {"PATH": "/usr/bin:/bin:/usr/sbin"}

    def take(self, word: str, rest: str) -> None:
        """Take one step."""
        sys.stderr.write(f"{word} {rest}\n")
        if word == "FROM":
            assert rest == "python:3.11-slim-bookworm", "another system than debootstrap's"
        elif word == "COPY":
            _copy(self.root / rest.split()[1].lstrip("/"))
        elif word == "RUN":
            self.run(rest)
        elif word == "USER":
            self.user = rest
        elif word == "ENV":
            name, _, value = rest.partition("=")
            self.environment[name] = value
            if name == "KVSCOPE_CACHE_DIR" and self.kernels is not None:
                self.place(value)
        elif word == "WORKDIR":
            self.folder = rest
            (self.root / rest.lstrip("/")).mkdir(exist_ok=True)
            shutil.chown(self.root / rest.lstrip("/"), 1000, 1000)  # as a mounted folder is
        elif word == "ENTRYPOINT":
            self.entry = [each.strip('"') for each in rest.strip("[]").split(", ")]

    def place(self, folder: str) -> None:
        """Put the compiled kernels where the user's commands look for them."""
        to = self.root / folder.lstrip("/") / "kernels"
        shutil.copytree(self.kernels, to)
        for each in (to.parent, to, *to.iterdir()):
            shutil.chown(each, 1000, 1000)

    def run(self, command: str) -> None:
        """Run a shell command; one that fails ends the process."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        inside = ["chroot", f"--userspec={self.user}:{self.user}", str(self.root)]
        words = [
            *inside,
            "/usr/bin/env",
            "-i",
            *variables,
            "HOME=/tmp",
            f"PIP_CERT=/{CERTIFICATES}",
        ]
        done = subprocess.run([*words, "sh", "-c", f"cd {self.folder} && {command}"], check=False)
        if done.returncode:
            sys.exit(done.returncode)


def main() -> None:
    """Run the command line."""
    root = Path(sys.argv[1]).resolve()
    for made in ("src", "opt/kvscope", "home/kvscope", "work"):
        shutil.rmtree(root / made, ignore_errors=True)
    subprocess.run(["chroot", str(root), "userdel", "kvscope"], check=False, capture_output=True)
    for name in ("etc/resolv.conf", CERTIFICATES):  # how this machine reaches what it installs
        if (host := Path("/") / name).exists():
            shutil.copyfile(host, root / name)
    shutil.copyfile(ROOT / "sample_traces" / "to-c.jsonl.gz", root / "trace.jsonl.gz")
    container = Container(root, *map(Path, sys.argv[2:3] or [None]))
    for word, rest in steps(DOCKERFILE.read_text(encoding="utf-8")):
        container.take(word, rest)
    for words in COMMANDS:
        container.run(shlex.join([*container.entry, *words]))


def steps(text: str) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions and what follows each."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    known = [re.fullmatch(r"([A-Z]+) (.+)", line) for line in lines]
    assert all(known), "a line that is no instruction of its own"
    return [(each[1], each[2]) for each in known if each]


def _copy(to: Path) -> None:
    """Copy what is tracked, as a clean checkout has it."""
    to.mkdir(parents=True)
    tracked = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(to)], input=tracked, check=True)


if __name__ == "__main__":
    main()

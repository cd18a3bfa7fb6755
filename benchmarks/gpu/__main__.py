"""Prove kvscope's predictions on a GPU: pack what travels, run the stages there, write the page.

    python -m benchmarks.gpu                              # what this machine can do of it
    python -m benchmarks.gpu run FOLDER [STAGE ...]       # where the GPU is; --small on a CPU
    python -m benchmarks.gpu pack FOLDER                  # for a machine without network
    python -m benchmarks.gpu page FOLDER --gpu h200       # docs/evidence/gpu.md, from the findings

On a machine without network: put this repository and the parts there, unpack them, run:

    mkdir site; for kind in kvscope engine numba; do cat $kind-*.part | tar xJ -C site; done
    python3 -m compileall -q -j 0 site; export PYTHONPATH=$PWD/site:$PWD
    python3 -m benchmarks.gpu run FOLDER
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import ROOT
from benchmarks.gpu.pack import pack
from benchmarks.gpu.page import tables
from benchmarks.gpu.stages import LIMIT_S, STAGES, run_stage
from benchmarks.table import record

FOLDER = ROOT / "build" / "gpu-evidence"
PAGE = ROOT / "docs" / "evidence" / "gpu.md"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", help="run stages on this machine")
    run.add_argument("folder", type=Path, help="for the findings, one file a stage")
    run.add_argument("stages", nargs="*", help=f"of {', '.join(STAGES)}; all of them by default")
    run.add_argument("--small", action="store_true", help="small models, for a CPU")
    run.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds of a stage")
    packed = commands.add_parser("pack", help="pack what travels to a machine without network")
    packed.add_argument("folder", type=Path, help="for the parts")
    page = commands.add_parser("page", help=f"write the tables into {PAGE.name}")
    page.add_argument("folder", type=Path, help="with the findings")
    page.add_argument("--gpu", required=True, help="its name in kvscope")
    options = parser.parse_args()
    if options.command == "pack":
        for part in pack(options.folder):
            print(f"{part.stat().st_size / 2**20:6.1f} MiB  {part}")
        return 0
    if options.command == "page":
        text = "\n".join(table.markdown() for table in tables(options.folder, options.gpu))
        record(PAGE, text, "gpu")
        return 0
    if options.command is None:
        small = not Path("/dev/nvidiactl").exists()
        print(f"{'no GPU here: small models on the CPU' if small else 'on the GPU'}, to {FOLDER}")
        return _run(FOLDER, list(STAGES), small=small, limit_s=LIMIT_S)
    unknown = set(options.stages) - set(STAGES)
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    stages = options.stages or list(STAGES)
    return _run(options.folder, stages, small=options.small, limit_s=options.limit_s)


def _run(folder: Path, stages: list[str], *, small: bool, limit_s: float) -> int:
    done = [run_stage(name, folder, small=small, limit_s=limit_s) for name in stages]
    return int(not all(done))


if __name__ == "__main__":
    sys.exit(main())

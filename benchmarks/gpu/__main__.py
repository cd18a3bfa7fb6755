"""Prove kvscope's predictions on a GPU: pack what travels, run the stages there, write the page.

python -m benchmarks.gpu run FOLDER torch vllm policy fleet    # where the GPU is
python -m benchmarks.gpu run FOLDER --small                    # the same on a CPU, in minutes
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.gpu.pack import pack
from benchmarks.gpu.stages import LIMIT_S, STAGES, run_stage


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run stages on this machine")
    run.add_argument("folder", type=Path, help="for the findings, one file a stage")
    run.add_argument("stages", nargs="*", help=f"of {', '.join(STAGES)}; all of them by default")
    run.add_argument("--small", action="store_true", help="small models, for a CPU")
    run.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds of a stage")
    packed = commands.add_parser("pack", help="pack what travels to a machine without network")
    packed.add_argument("folder", type=Path, help="for the parts")
    options = parser.parse_args()
    if options.command == "pack":
        for part in pack(options.folder):
            print(f"{part.stat().st_size / 2**20:6.1f} MiB  {part}")
        return 0
    unknown = set(options.stages) - set(STAGES)
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    done = [
        run_stage(name, options.folder, small=options.small, limit_s=options.limit_s)
        for name in options.stages or STAGES
    ]
    return int(not all(done))


if __name__ == "__main__":
    sys.exit(main())

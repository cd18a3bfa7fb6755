"""Put compiled kernels into the wheel: those of the folder that KVSCOPE_WHEEL_KERNELS names.

They run on this platform, with these versions of numba and Python; others compile their own. A
wheel without them, as every source distribution, is for all platforms.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface):
    """Adds the files, and names the platform. Numba's own wheels need that manylinux, too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add them, but to no editable installation: that one would never see newer ones."""
        folder = os.environ.get("KVSCOPE_WHEEL_KERNELS")
        if not folder or version == "editable":
            return
        files = sorted(Path(folder).glob("*.kernel"))
        if not files:
            raise FileNotFoundError(f"no compiled kernels in {folder}")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform.replace('linux', 'manylinux_2_17')}"
        build_data["pure_python"] = False
        build_data["force_include"] |= {
            str(file): f"kvscope/_packed/kernels/{file.name}" for file in files
        }

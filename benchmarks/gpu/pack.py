"""Pack what a machine without network needs beside this repository, in parts that travel.

An archive is a folder of unpacked wheels for its PYTHONPATH. Of vLLM only the kernels of one GPU
architecture are kept, and flash-attention 2 is left out, which it uses before that one: 150 MiB of
wheel become 40. A part is at most `PART_BYTES`; `cat part-* | tar xJ` unpacks them.
"""

from __future__ import annotations

import io
import lzma
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PART_BYTES = 48 << 20
PYTHON, ARCHITECTURE = "3.12", 90
PLATFORMS = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
LISTS = ("kvscope", "engine", "numba")
_LEFT_OUT = (
    "vllm/vllm-rs",  # a frontend of its own
    "vllm/vllm_flash_attn/_vllm_fa2_C",
    "vllm/third_party/fmha_sm100/",
    "vllm/third_party/deep_gemm/",
)
_FATBIN, _CUBIN, _PTX = 0xBA55ED50, 2, 1
_CONTAINER, _ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
_ARCHITECTURE_AT = 28  # in an entry's header


def pack(folder: Path) -> list[Path]:
    """Download, thin and pack all lists into parts in `folder`; return those."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for name in LISTS:
        with tempfile.TemporaryDirectory() as temporary:
            _download(Path(__file__).with_name(f"wheels-{name}.txt"), Path(temporary))
            archive = _archive(sorted(Path(temporary).glob("*.whl")))
        for at in range(0, len(archive), PART_BYTES):
            parts.append(folder / f"{name}-{at // PART_BYTES}.part")
            parts[-1].write_bytes(archive[at : at + PART_BYTES])
    return parts


def _download(requirements: Path, folder: Path) -> None:
    platforms = [f"manylinux_{each}_x86_64" for each in PLATFORMS]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--python-version", PYTHON]
    command += [word for each in platforms for word in ("--platform", each)]
    subprocess.run([*command, "-d", str(folder), "-r", str(requirements)], check=True)


def _archive(wheels: list[Path]) -> bytes:
    """Return the wheels' files as one compressed archive."""
    packed = io.BytesIO()
    with (
        lzma.open(packed, "wb", preset=6) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as files:
                for name in files.namelist():
                    if name.endswith("/") or name.startswith(_LEFT_OUT):
                        continue
                    data = bytearray(files.read(name))
                    if name.startswith("vllm/") and name.endswith(".so"):
                        thin(data, ARCHITECTURE)
                    about = tarfile.TarInfo(name)
                    about.size, about.mode = len(data), 0o755
                    archive.addfile(about, io.BytesIO(data))
    return packed.getvalue()


def thin(data: bytearray, architecture: int) -> int:
    """Blank the GPU code of other architectures in a library, and return its bytes.

    Every container keeps its machine code for `architecture`; one without keeps its PTX, which the
    driver compiles. Sizes stay, so that the library stays valid; blanks compress to nothing.

    Source: the layout of fat binaries as `cuobjdump` lists them (CUDA 13): a container's header
    of 16 bytes, then entries of a header (kind, its size, the size of the code, at 28 the
    architecture) and code.
    """
    blanked, at = 0, data.find(_FATBIN.to_bytes(4, "little"))
    while at >= 0:
        _, version, header, size = _CONTAINER.unpack_from(data, at)
        if (version, header) != (1, _CONTAINER.size):
            at = data.find(_FATBIN.to_bytes(4, "little"), at + 4)
            continue
        entries, end, place = [], at + header + size, at + header
        while place < end:
            kind, _, own, code = _ENTRY.unpack_from(data, place)
            entries.append((kind, _of(data, place), place + own, code))
            place += own + code
        native = any(kind == _CUBIN and of == architecture for kind, of, _, _ in entries)
        for kind, of, start, code in entries:
            kept = (kind == _CUBIN and of == architecture) if native else kind == _PTX
            if not kept:
                data[start : start + code] = bytes(code)
                blanked += code
        at = data.find(_FATBIN.to_bytes(4, "little"), end)
    return blanked


def _of(data: bytearray, entry: int) -> int:
    return int.from_bytes(data[entry + _ARCHITECTURE_AT : entry + _ARCHITECTURE_AT + 4], "little")

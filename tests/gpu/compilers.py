"""Compiles a variant for a GPU and reads what its compiler says of each kernel: registers, spills, local memory.

What is compiled is the text that an installed package has of each program, its includes pasted in: what holds for
kernels/*.cl alone would miss an include that is pasted once too seldom (cmake/embed_kernels.cmake).

Inlining is forced for PTX, as NVIDIA's own compiler does it; AMD's and Intel's do it by themselves. It is not the
compiler of a driver that makes this code, so registers may differ there by some.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import toolchain
from toolchain import BUILD, CLANG, KERNELS, LIBCLC, OCLOC, PTXAS, environment
from variants import FOR_NVIDIA, Variant

NVIDIA = ("sm_80", "sm_86", "sm_89", "sm_90")
AMD = ("gfx1030", "gfx1100", "gfx942")
INTEL = ("dg2",)
EMBED = toolchain.ROOT / "cmake" / "embed_kernels.cmake"
ARCHITECTURES = (*NVIDIA, *AMD, *INTEL)


class Figures(NamedTuple):
    """Of one kernel. ``registers``: of a lane (NVIDIA, AMD), None where the compiler does not tell. ``spilled``: bytes
    of a lane that NVIDIA's compiler stores and loads instead of keeping them, registers that AMD's keeps in memory.
    ``stack``: bytes of a lane in memory (Intel: of a hardware thread), spills among them. ``shared``: bytes of a
    group's local memory. ``warps``: resident on a multiprocessor at a time, or waves on a SIMD unit."""

    registers: int | None
    spilled: int
    stack: int
    shared: int
    warps: int | None


class DoesNotCompile(Exception):
    """A compiler refused a kernel."""


def _run(what: list[str], tools: str, log: Path) -> str:
    done = subprocess.run(what, env=environment(tools), capture_output=True, text=True, check=False)
    log.write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        raise DoesNotCompile(f"[{Path(what[0]).name}] {log.stem}: {(done.stdout + done.stderr)[-600:]}")
    return done.stdout + done.stderr


def place(architecture: str, variant: Variant) -> Path:
    """Where the files of a variant begin."""
    folder = BUILD / architecture
    folder.mkdir(parents=True, exist_ok=True)
    return folder / variant.key.replace(" ", ",")


@cache
def _installed() -> Path:
    """The folder of programs as they are installed, one file each. Other threads and processes may make it, too."""
    folder = BUILD / "installed" / _sources().hex()[:16]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(dir=folder.parent))
        table = own / "table.cpp"
        subprocess.run(["cmake", f"-DFOLDER={KERNELS}", f"-DOUTPUT={table}", "-P", str(EMBED)], check=True)
        for name, text in re.findall(r'\{"(\w+)", R"kvtrie_cl\((.*?)\)kvtrie_cl"\}', table.read_text(), re.S):
            (own / f"{name}.cl").write_text(text)
        try:
            own.rename(folder)
        except OSError:  # another was first
            shutil.rmtree(own)
    return folder


def _clang(variant: Variant, target: list[str], library: str, to: Path) -> None:
    options = [f"-D{each}" for each in variant.options]
    fixed = ["-x", "cl", "-cl-std=CL1.2", "-O3", "-w", "-Dasm=__asm__", "-Xclang", "-finclude-default-header"]
    linked = ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(LIBCLC / library)]
    source = _installed() / f"{variant.program}.cl"
    _run([str(CLANG), *fixed, *target, *linked, *options, "-S", "-o", str(to), str(source)], "clang",
         to.with_name(to.name + ".log"))  # fmt: skip


_TO_PTX = (
    *("-target", "nvptx64-nvidia-nvcl", "-mllvm", "-inline-threshold=100000"),
    *("-Xclang", "-target-cpu", "-Xclang", "sm_80", "-Xclang", "-target-feature", "-Xclang", "+ptx78"),
)


@cache
def _sources() -> bytes:
    """A digest of all that a kernel's code follows from, but for its variant."""
    texts = [Path(__file__), Path(toolchain.__file__), EMBED, *sorted(KERNELS.glob("*.cl*"))]
    return hashlib.sha256(b"".join(text.read_bytes() for text in texts)).digest()


def ptx_of(variant: Variant) -> Path:
    """Compiles to PTX for compute capability 8.0, which ptxas takes for all later ones as well. What was compiled from
    the same sources before, as its first line says, is taken again: by other processes, too."""
    to = place("ptx", variant)
    to = to.with_name(to.name + ".ptx")
    line = f"// {hashlib.sha256(_sources() + repr(variant).encode()).hexdigest()}\n"
    if to.exists() and to.read_text().startswith(line):
        return to
    own = to.with_name(f"{to.name}.{os.getpid()}")
    _clang(variant, list(_TO_PTX), "nvptx64--nvidiacl.bc", own)
    own.with_name(f"{own.name}.log").unlink()
    own.write_text(line + own.read_text())
    own.rename(to)
    return to


# Of a multiprocessor (CUDA C++ Programming Guide, technical specifications by compute capability): warps, groups, bytes
# of shared memory, of which each group takes 1,024 more than it asks for. 65,536 registers, given to warps by 256.
_LIMITS = {
    "sm_80": (64, 32, 164 << 10),
    "sm_86": (48, 16, 100 << 10),
    "sm_89": (48, 24, 100 << 10),
    "sm_90": (64, 32, 228 << 10),
}


def resident_warps(architecture: str, registers: int, shared: int, lanes: int) -> int:
    """Warps that a multiprocessor holds at a time."""
    most, groups, memory = _LIMITS[architecture]
    warps = -(-lanes // 32)
    of_warp = -(-registers * 32 // 256) * 256
    by_registers = 65536 // of_warp // warps
    by_memory = memory // (-(-shared // 128) * 128 + 1024)
    return warps * min(groups, most // warps, by_registers, by_memory)


_ARRAYS = re.compile(r"(\.shared \.align (\d+) \.b8 (\w+)_\$_\w+)\[(\d+)\]")
_MOST_STATIC = 48 << 10


def _assemblable(ptx: Path) -> tuple[Path, dict[str, int]]:
    """What ptxas takes, and bytes of each kernel's local memory that this leaves out.

    ptxas refuses kernels that declare more than 48 KiB, which NVIDIA's driver takes where a group may have as much
    (docs/gpu.md): their arrays are declared with as few bytes as they are aligned to. Registers do not depend on that.
    """
    text, bytes_of = ptx.read_text(), Counter[str]()
    for array in _ARRAYS.finditer(text):
        bytes_of[array[3]] += int(array[4])
    large = {kernel: total for kernel, total in bytes_of.items() if total > _MOST_STATIC}
    left_out: Counter[str] = Counter()

    def least(array: re.Match[str]) -> str:
        if array[3] not in large:
            return array[0]
        left_out[array[3]] += int(array[4]) - int(array[2])
        return f"{array[1]}[{array[2]}]"

    if not large:
        return ptx, left_out
    to = ptx.with_suffix(".small.ptx")
    to.write_text(_ARRAYS.sub(least, text))
    return to, left_out


def _nvidia(variant: Variant, architecture: str, ptx: Path) -> dict[str, Figures]:
    source, left_out = _assemblable(ptx)
    assembled = [str(PTXAS), f"-arch={architecture}", "-v", "-o", "/dev/null", str(source)]
    said = _run(assembled, "nvidia", Path(f"{place(architecture, variant)}.log"))
    figures = {}
    for part in said.split("Compiling entry function '")[1:]:
        stack, stores, loads = (
            int(each) for each in re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", part)
        )
        found, shared = re.search(r"Used (\d+) registers", part), re.search(r"(\d+) bytes smem", part)
        assert found is not None
        name = part.split("'")[0]
        registers, group = int(found[1]), (int(shared[1]) if shared else 0) + left_out.get(name, 0)
        warps = resident_warps(architecture, registers, group, variant.lanes)
        figures[name] = Figures(registers, stores + loads, stack, group, warps)
    return figures


def _amd(variant: Variant, architecture: str) -> dict[str, Figures]:
    to = place(architecture, variant)
    to = to.with_name(to.name + ".s")
    _clang(variant, ["-target", "amdgcn-amd-amdhsa", f"-mcpu={architecture}", "-nogpulib"], "amdgcn--amdhsa.bc", to)
    text = to.read_text()
    figures = {}
    for part in text.split("amdhsa.kernels:")[1].split("\namdhsa.")[0].split("\n  - ")[1:]:
        value = {key: int(number) for key, number in re.findall(r"\.(\w+):\s+(\d+)\n", part)}
        name = re.search(r"\n    \.name:\s+(\w+)", part)
        assert name is not None
        waves = re.search(rf"\.amdhsa_kernel {name[1]}\n.*?; Occupancy: (\d+)", text, re.S)
        spilled = value["vgpr_spill_count"] + value["sgpr_spill_count"]
        figures[name[1]] = Figures(
            value["vgpr_count"], spilled, value["private_segment_fixed_size"], value["group_segment_fixed_size"],
            int(waves[1]) if waves else None,
        )  # fmt: skip
    return figures


# Patch tokens of Intel's binary format (iOpenCL's patch_list.h): a group's local memory, scratch of a thread.
_LOCAL, _SCRATCH = 15, 18


def _intel(variant: Variant, architecture: str) -> dict[str, Figures]:
    to = place(architecture, variant)
    dump = to.with_name(to.name + ".dump")
    options = " ".join(["-cl-std=CL1.2", "-w", *(f"-D{each}" for each in variant.options)])
    source = _installed() / f"{variant.program}.cl"
    output = ["-output", "kernel", "-output_no_suffix", "-out_dir", str(dump)]
    log = to.with_name(to.name + ".log")
    dump.mkdir(exist_ok=True)
    toolchain.name_disassembler()
    _run(
        [str(OCLOC), "compile", "-file", str(source), "-device", architecture, "-options", options, *output],
        "intel",
        log,
    )
    _run(
        [str(OCLOC), "disasm", "-file", str(dump / "kernel"), "-device", architecture, "-dump", str(dump)],
        "intel",
        log,
    )
    figures = {}
    for part in (dump / "PTM.txt").read_text().split("\nKernel #")[1:]:
        name = re.search(r"KernelName (\w+)", part)
        assert name is not None
        tokens = {int(token): bytes(int(byte, 16) for byte in data.split()) for token, data in
                  re.findall(r"4 Token (\d+)\n\t4 Size \d+\n\tHex ([0-9a-f ]+)", part)}  # fmt: skip
        second = {token: int.from_bytes(data[4:8], "little") for token, data in tokens.items()}
        scratch = second.get(_SCRATCH, 0)
        figures[name[1]] = Figures(None, scratch, scratch, second.get(_LOCAL, 0), None)
    return figures


def runs_on(architecture: str, variant: Variant) -> bool:
    """Whether devices of an architecture launch a variant."""
    if variant.only_on is not None:
        return architecture == variant.only_on
    return architecture in NVIDIA or variant.program not in FOR_NVIDIA


def machine_code(architecture: str, variant: Variant, entry: str) -> str:
    """What ``compile_for`` left of one kernel for AMD's or Intel's GPUs, as text."""
    to = place(architecture, variant)
    if architecture in INTEL:
        return (to.with_name(to.name + ".dump") / f"{entry}_KernelHeap.asm").read_text()
    text = to.with_name(to.name + ".s").read_text()
    return text.split(f"\n{entry}:")[1].split("\n.Lfunc_end")[0]


def compile_for(architectures: tuple[str, ...], variant: Variant) -> dict[str, dict[str, Figures]]:
    """By architecture, the figures of the kernels that a device launches of this variant, by their names."""
    made = {}
    architectures = tuple(each for each in architectures if runs_on(each, variant))
    ptx = ptx_of(variant) if set(architectures) & set(NVIDIA) else None
    for architecture in architectures:
        if architecture in NVIDIA:
            assert ptx is not None
            found = _nvidia(variant, architecture, ptx)
        else:
            found = (_amd if architecture in AMD else _intel)(variant, architecture)
        missing = [name for name in variant.entries if name not in found]
        if missing:
            raise DoesNotCompile(f"[{architecture}] {variant.key}: got no kernel {', '.join(missing)}")
        made[architecture] = {name: found[name] for name in variant.entries}
    return made

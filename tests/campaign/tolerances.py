#!/usr/bin/env python3
"""Measures how near tests come to their bounds, as several processors compute, and writes docs/results/tolerances.md.

    tolerances.py                          every processor that this machine can be, then the page
    tolerances.py native nehalem           these, then the page
    tolerances.py --only cpp haswell       C++ tests alone; --only python
    tolerances.py --table                  the page alone, of what was measured before

Needs `./dev build` and the tests' programs in build/release. What was measured is in build/bounds, a file for each
processor; compiled programs stay in build/levels and build/drivers. A processor below this one is this one, told to
leave out instructions: by PoCL (POCL_KERNELLIB_NAME), OpenBLAS, numpy, torch, oneDNN, MKL and glibc. The exit status is
1 if a test failed, or if a bound that is measured and not derived has a margin of less than 10.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests" / "python"))

from numpy._core import _multiarray_umath as numpy_parts

from levels import LEVELS, environment, flags_here

FOLDER = ROOT / "build" / "bounds"
PAGE = ROOT / "docs" / "results" / "tolerances.md"
BEGIN = "## The bounds\n"  # what follows on the page is written by this program
MARGIN = 10
INTEL = ROOT / "build" / "drivers" / "intel" / "lib" / "libintelocl.so"  # ./dev drivers
OPTIONS: dict[str, list[str]] = {  # of the C++ tests that have bounds
    "test_base": ["--gtest_filter=CellFormat.*"],
    "test_cl": ["--gtest_filter=*Clblast*"],
    "test_cache": [],
    "test_ops": [],
    "test_standalone": ["--gtest_filter=*Encoder*"],
    "oracle_causal": ["--operations", "20000"],
}


class Processor(NamedTuple):
    name: str
    what: str
    environment: dict[str, str]
    missing: str = ""  # why it cannot be measured here
    slow: str = ""  # C++ tests whose kernels it compiles for many minutes, as --gtest_filter names them


def _lesser(name: str, what: str, pocl: str, blas: str, torch: tuple[str, str], kept: tuple[str, ...]) -> Processor:
    """``torch``: what ATen and oneDNN choose, at most; ``kept``: numpy's paths beyond its baseline."""
    level = LEVELS[pocl]
    features = numpy_parts.__cpu_features__
    off = [each for each in numpy_parts.__cpu_dispatch__ if features[each] and each not in kept]
    glibc = ["AVX512F", "AVX512VL", "AVX512BW"] + ([] if kept else ["AVX2", "FMA", "FMA4"])
    glibc += ["AVX"] if level.library == "sse41" else []
    missing = "" if flags_here().issuperset(level.needs) else f"this processor is below {name}"
    settings = {
        **environment(pocl, level),
        "OPENBLAS_CORETYPE": blas,
        "ATEN_CPU_CAPABILITY": torch[0],
        "ONEDNN_MAX_CPU_ISA": torch[1],
        "MKL_CBWR": "AVX2" if kept else "COMPATIBLE",
        "NPY_DISABLE_CPU_FEATURES": ",".join(off),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=" + ",".join(f"-{each}" for each in glibc),
    }
    settings["KVTRIE_TEST_PROGRAMS"] = settings["KVTRIE_CACHE_DIR"]
    return Processor(name, what, settings, missing)


def _intel() -> Processor:
    place = ROOT / "build" / "drivers"
    vendors = place / "vendors" / "intel"
    vendors.mkdir(parents=True, exist_ok=True)
    (vendors / "intel.icd").write_text(f"{INTEL}\n")
    programs = place / "programs" / "intel"
    programs.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = {
        "OCL_ICD_VENDORS": f"{vendors}/",
        "KVTRIE_CACHE_DIR": str(programs),
        "KVTRIE_TEST_PROGRAMS": str(programs),
    }
    missing = "" if INTEL.exists() else f"{INTEL} is not there: `./dev drivers` fetches it"
    slow = "*AnyVectorWidth:Matmul.*:MatmulGroup*:MatmulQ8*"
    return Processor("intel", "this processor, kernels by Intel's OpenCL runtime", settings, missing, slow)


def processors() -> list[Processor]:
    return [
        Processor("native", f"this processor, {_model()}; kernels by PoCL, as in each column but the last", {}),
        _lesser("haswell", "AVX2 and FMA", "avx2", "Haswell", ("avx2", "AVX2"), ("X86_V3",)),
        _lesser("sandybridge", "AVX without FMA", "avx", "Sandybridge", ("default", "AVX"), ()),
        _lesser("nehalem", "SSE 4.1 in kernels, SSE 4.2 elsewhere", "sse4.1", "Nehalem", ("default", "SSE41"), ()),
        _intel(),
    ]


def _model() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"model name\s*: (.*)", text)
    widest = next((each for each in ("AVX-512", "AVX2", "AVX") if each.lower().replace("-512", "512f") in text), "SSE")
    return f"{name[1] if name else 'unknown'}, with {widest}"


# ---- measuring -------------------------------------------------------------------------------------------------------


def compared(kind: str) -> list[str]:
    """The tests that compared something on this processor, if it was measured."""
    known = FOLDER / f"native.{kind}.jsonl"
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    return sorted({json.loads(line)["site"] for line in lines})


def python_tests() -> list[str]:
    """Files with comparisons by tests/python/bounds.py, their own or of a module that they import."""
    paths = sorted((ROOT / "tests" / "python").glob("*.py"))
    texts = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    helpers = [name for name, text in texts.items() if re.search(r"^(import|from) bounds", text, re.M)]
    helpers = [name for name in helpers if not name.startswith("test_")]
    uses = rf"^import bounds|^from bounds import .*(close|within)|^(import|from) ({'|'.join(helpers)})\b"
    found = {name for name, text in texts.items() if name.startswith("test_") and re.search(uses, text, re.M)}
    found -= {"test_levels", "test_emulated"}  # which choose processors of their own
    return [f"{name}.py" for name in sorted(found)]


def commands(processor: Processor, kind: str) -> list[list[str]]:
    """All tests that may compare something; on other processors those that did on this one."""
    tests = [] if processor.name == "native" else compared(kind)
    if kind == "python":
        names = [f"tests/python/{name}" for name in tests or python_tests()]
        workers = str(min(4, os.cpu_count() or 1))
        return [[sys.executable, "-m", "pytest", "-q", "-n", workers, "--dist", "worksteal", *names]]
    found = []
    for program, options in OPTIONS.items():
        own = [name for each, _, name in (site.partition(" ") for site in tests) if each == program]
        if own and "." in own[0]:
            options = [f"--gtest_filter={':'.join(f'{name}:{name}/*' for name in own)}-{processor.slow}"]
        found.append([str(ROOT / "build" / "release" / "tests" / "cpp" / program), *options])
    return found


def measure(processor: Processor, kinds: list[str]) -> bool:
    """Whether all tests passed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    passed = True
    for kind in kinds:
        file = FOLDER / f"{processor.name}.{kind}.jsonl"
        file.unlink(missing_ok=True)
        # One thread for torch: several processes share the machine, and threads that wait for each other spin.
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **processor.environment, "KVTRIE_BOUNDS": str(file)}
        for command in commands(processor, kind):
            title = "Python" if kind == "python" else Path(command[0]).name
            log = FOLDER / f"{processor.name}.{title}.log"
            with log.open("w") as out:
                status = subprocess.run(
                    command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
                ).returncode
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            print(f"  {processor.name:<12} {title:<16} {f'FAILED, see {log}' if status else last}", flush=True)
            passed &= status == 0
    return passed


# ---- the page --------------------------------------------------------------------------------------------------------


def entries() -> dict[str, list[dict[str, Any]]]:
    """What was measured on each processor, in the order of the page's columns."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in processors():
        texts = [file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob(f"{each.name}.*.jsonl"))]
        found[each.name] = [json.loads(line) for text in texts for line in text.splitlines()]
    return found


def page(found: dict[str, list[dict[str, Any]]]) -> tuple[str, list[str]]:
    """The page's generated part, and the bounds whose margin is too small."""
    bounds: dict[str, dict[str, Any]] = {}
    worst: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for name, lines in reversed(found.items()):  # a bound is what the first processor was asked for
        for line in lines:
            bounds[line["name"]] = line
            cell = worst[line["name"]][line["site"]]
            cell[name] = max(cell.get(name, 0.0), line["measured"])
    shown = [each for each in processors() if found[each.name]]
    names = [each.name for each in shown]
    text = [BEGIN, "| column | what computes |", "|---|---|"]
    text += [f"| {each.name} | {each.what} |" for each in shown]
    thin = []
    for bound in sorted(bounds.values(), key=lambda bound: (bound["name"].startswith("k"), bound["name"])):
        value, allowed = bound["value"], _number(bound["value"])
        text += ["", f"### {bound['name']}: {allowed}", "", f"{bound['why'][0].upper()}{bound['why'][1:]}."]
        text += ["Derived.", ""] if bound["derived"] else [""]
        text += [f"| test | {' | '.join(names)} | margin |", "|---" * (len(names) + 2) + "|"]
        for site, measured in sorted(worst[bound["name"]].items()):
            largest = max(measured.values())
            cells = [_number(measured[name]) if name in measured else "" for name in names]
            margin = value / largest if largest else 0.0
            text.append(f"| {site} | {' | '.join(cells)} | {_times(margin)} |")
            if 0 < margin < MARGIN and not bound["derived"]:
                thin.append(f"{margin:.1f}: {site}, of {bound['name']}, {allowed}; measured {_number(largest)}")
    return "\n".join(text) + "\n", sorted(thin, key=lambda line: float(line.partition(":")[0]))


def _number(value: float) -> str:
    if value == 0 or value >= 1:
        return f"{value:g}"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def _times(margin: float) -> str:
    return "" if margin == 0 else f"{margin:.1f}" if margin < MARGIN else f"{margin:,.0f}"


def main() -> int:
    known = {each.name: each for each in processors()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PROCESSOR", help=", ".join(known))
    parser.add_argument("--only", choices=["python", "cpp"], action="append", help="tests of one kind")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    options = parser.parse_args()
    unknown = set(options.names) - known.keys()
    if unknown:
        parser.error(f"PROCESSOR: got {', '.join(sorted(unknown))}, allowed {', '.join(known)}")
    passed = True
    for name in [] if options.table else options.names or known:
        if known[name].missing:
            print(f"  {name:<12} {known[name].missing}", flush=True)
        else:
            passed &= measure(known[name], options.only or ["python", "cpp"])
    text, thin = page(entries())
    kept = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
    PAGE.write_text(kept + text, encoding="utf-8")
    print("".join(f"  margin {line}\n" for line in thin), end="")
    return 0 if passed and not thin else 1


if __name__ == "__main__":
    sys.exit(main())

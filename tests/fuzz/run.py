"""Runs the fuzz targets, each for some seconds, as many at a time as there are processors: ``./dev fuzz``.

    run.py [--seconds N] [--seed N] [--programs FOLDER] [NAME ...]

prints what each did, its seed, and for a finding where the input lies and how to play it again. Exits with 1 if there
was one. What a target learns is kept in build/fuzz/corpus/NAME; it begins with that and with the corpus of the tree.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CORPUS = ROOT / "tests/fuzz/corpus"
KEPT = ROOT / "build/fuzz/corpus"
FINDINGS = ROOT / "build/fuzz/findings"
PYTHON_TARGETS = ROOT / "tests/fuzz/python_targets.py"

# One input hangs after ten minutes, wherever it runs; memory is that of a target with its sanitizers.
UNIT_SECONDS = 600
LIMITS = ("-max_len=1024", "-len_control=0", f"-timeout={UNIT_SECONDS}", "-rss_limit_mb=3072", "-malloc_limit_mb=512")
USUAL = ("-use_value_profile=1", "-print_final_stats=1", "-reload=0")
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "LSAN_OPTIONS": f"suppressions={ROOT / 'tests/cpp/lsan.supp'}:print_suppressions=0",
}


@dataclass
class Target:
    name: str  # of its folder in the corpus
    command: list[str]  # what libFuzzer's options go to
    replays: list[str]  # commands that an input's path goes to, to play it once

    def corpora(self) -> list[str]:
        kept = KEPT / self.name
        kept.mkdir(parents=True, exist_ok=True)
        return [str(kept), *(str(each) for each in [CORPUS / self.name] if each.is_dir())]


@dataclass
class Outcome:
    target: Target
    seconds: float
    status: int
    text: str

    def number(self, pattern: str) -> int:
        found = re.findall(pattern, self.text)
        return int(found[-1]) if found else 0

    def line(self, seed: int) -> str:
        executed = self.number(r"stat::number_of_executed_units: *(\d+)")
        added = self.number(r"stat::new_units_added: *(\d+)")
        features = self.number(r"\bft: (\d+)")
        state = "ok" if self.status == 0 else f"FAILED ({self.status})"
        return (
            f"{self.target.name:<28}{executed:>11,} runs {added:>6} new units {features:>7} features"
            f"  seed {seed} {self.seconds:>5.0f} s  {state}"
        )

    def finding(self) -> str:
        """The end of what it said, the input, and how to play that again."""
        said = [line for line in self.text.splitlines() if not re.search(r"^#\d+\s", line)]
        told = re.search(r"Test unit written to (\S+)", self.text)
        lines = [f"---- {self.target.name}", *said[-60:]]
        if told:
            path = os.path.relpath(told.group(1), ROOT)
            lines += [f"the input: {path}", "to play it again:"]
            lines += [f"    {command} {path}" for command in self.target.replays]
        return "\n".join(lines)


def find_targets(programs: Path) -> list[Target]:
    found = []
    for path in sorted(programs.glob("fuzz_*")):
        if not path.suffix and os.access(path, os.X_OK):
            name = path.name[len("fuzz_") :]
            replays = [str(path.relative_to(ROOT)), f"build/release/tests/fuzz/test_fuzz {name}"]
            found.append(Target(name, [str(path)], replays))
    script = [sys.executable, str(PYTHON_TARGETS)]
    for name in subprocess.check_output([*script, "--list"], text=True, env=environment()).split():
        found.append(Target(name, [*script, name], [f"./dev run python tests/fuzz/python_targets.py {name}"]))
    return found


def environment() -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests/python'}"}


def run(target: Target, seconds: int, seed: int) -> Outcome:
    FINDINGS.mkdir(parents=True, exist_ok=True)
    log = FINDINGS / f"{target.name}.log"
    options = [f"-seed={seed}", f"-max_total_time={seconds}", f"-artifact_prefix={FINDINGS}/{target.name}-"]
    start = time.monotonic()
    with log.open("wb") as out:
        command = [*target.command, *LIMITS, *USUAL, *options, *target.corpora()]
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=environment())
        try:
            status = child.wait(seconds + 3 * UNIT_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
    return Outcome(target, time.monotonic() - start, status, log.read_text(errors="replace"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=30, help="that each target runs")
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")), help="by default the date")
    parser.add_argument("--programs", type=Path, default=ROOT / "build/fuzz/tests/fuzz")
    parser.add_argument("names", nargs="*", metavar="NAME", help="those whose names contain NAME")
    options = parser.parse_args()
    targets = find_targets(options.programs.resolve())
    chosen = [each for each in targets if not options.names or any(part in each.name for part in options.names)]
    if not chosen:
        print(f"no target's name contains {' or '.join(options.names)}; there are {', '.join(t.name for t in targets)}")
        return 2
    failed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(lambda target: run(target, options.seconds, options.seed), chosen)
        for number, outcome in enumerate(done, 1):
            print(f"[{number}/{len(chosen)}] {outcome.line(options.seed)}", flush=True)
            if outcome.status != 0:
                failed.append(outcome)
    for outcome in failed:
        print(outcome.finding())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

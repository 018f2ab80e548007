#!/usr/bin/env python3
"""Who holds which mutex: Clang's thread-safety analysis (csrc/base/mutex.h) over the sources that changed and all that
include what changed (--all: every one), after a look at whether it refuses what it has to refuse.

The first argument is a build folder that has each file by itself. clang-tidy is the Clang that there is, and its
settings are in .clang-tidy. `.ci/tidy` has it look at one source for each changed header; this at every one of them,
for a member may be touched without its mutex in any. It takes about as long as reading the headers does; so bindings,
which see the public classes of the library and read pybind11, are among them where they name a mutex.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^#include "(.*)"$', re.MULTILINE)
MARKED = ROOT / "tests/lint/refused_locks.cpp"
# clang-tidy does not start without a check of its own: this one is quick.
CHECKS = "--checks=-*,clang-diagnostic-thread-safety*,modernize-deprecated-headers"
REPORTED = re.compile(r"^(.+?):(\d+):\d+: (?:warning|error): (.*) \[clang-diagnostic-thread-safety", re.MULTILINE)
BROKEN = re.compile(r"\[clang-diagnostic-error")


def changed(arguments: list[str]) -> set[str]:
    return set(subprocess.check_output([ROOT / ".ci/changed", *arguments], text=True).splitlines())


def affected(files: set[str]) -> set[str]:
    """`files`, and every C++ file that includes one of them, directly or not: "layer/file.h" or a file beside it."""
    tracked = subprocess.check_output(
        ["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cpp"], cwd=ROOT, text=True
    )
    includes = {
        path: INCLUDE.findall((ROOT / path).read_text(encoding="utf-8"))
        for path in tracked.splitlines()
        if (ROOT / path).is_file()
    }
    found, fresh = set(files), set(files)
    while fresh:
        ends = {end for path in fresh for end in (path.rsplit("/", 1)[-1], "/".join(path.split("/")[-2:]))}
        fresh = {path for path, names in includes.items() if path not in found and not ends.isdisjoint(names)}
        found |= fresh
    return found


def analyse(path: Path, *options: str) -> str:
    done = subprocess.run(["clang-tidy", "--quiet", CHECKS, str(path), *options], capture_output=True, text=True)
    return done.stdout if done.returncode else ""


def misjudged() -> list[str]:
    """Where the analysis and the marks of the file that is made for it differ."""
    output = analyse(MARKED, "--", "-std=c++20", f"-I{ROOT / 'csrc'}")
    lines = MARKED.read_text(encoding="utf-8").splitlines()
    marks = {i: line.split("// refused: ")[1] for i, line in enumerate(lines, 1) if "// refused: " in line}
    reports = [(int(line), text) for _, line, text in REPORTED.findall(output)]
    unmarked = [f"line {line}: {text}" for line, text in reports if line not in marks]
    unseen = [
        f"line {line} passes, expected: {text}"
        for line, text in marks.items()
        if not any(at == line and said.startswith(text) for at, said in reports)
    ]
    broken = [output] if BROKEN.search(output) else []
    return broken + unmarked + unseen


def has_locks(path: str) -> bool:
    """Whether the file could hold a mutex, or touch what one guards."""
    return path.startswith("csrc/") or "Mutex" in (ROOT / path).read_text(encoding="utf-8")


def main() -> int:
    folder, *arguments = sys.argv[1:]
    if wrong := misjudged():
        print(f"{MARKED.relative_to(ROOT)}:", *wrong, sep="\n")
        return 1
    wanted = affected(changed(arguments)) & affected({"csrc/base/mutex.h"})
    entries = json.loads((Path(folder) / "compile_commands.json").read_text(encoding="utf-8"))
    paths = {os.path.relpath(entry["file"], ROOT) for entry in entries} & wanted
    chosen = [
        ROOT / path for path in sorted(paths) if path.startswith(("csrc/", "python/bindings/")) and has_locks(path)
    ]
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, report in enumerate(pool.map(lambda path: analyse(path, "-p", folder), chosen), 1):
            print(f"[{number}/{len(chosen)}] {chosen[number - 1].relative_to(ROOT)}", flush=True)
            if report:
                failed += 1
                print(report, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Compiles, each by itself and without code, the sources that changed and those that include what changed (--all: every
one), so that none leans on what its neighbours in a unit include.

The first argument is a build folder that was configured with KVTRIE_UNITY=OFF.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^#include "(.*)"$', re.MULTILINE)


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


def compile_alone(entry: dict[str, str]) -> tuple[str, str]:
    command = shlex.split(entry["command"])
    at = command.index("-o")
    del command[at : at + 2]
    while command[0].endswith("ccache"):
        del command[0]
    done = subprocess.run([*command, "-fsyntax-only"], cwd=entry["directory"], capture_output=True, text=True)
    return os.path.relpath(entry["file"], ROOT), done.stderr if done.returncode else ""


def main() -> int:
    folder, *arguments = sys.argv[1:]
    wanted = affected(changed(arguments))
    entries = {entry["file"]: entry for entry in json.loads((Path(folder) / "compile_commands.json").read_text())}
    chosen = [entry for path, entry in sorted(entries.items()) if os.path.relpath(path, ROOT) in wanted]
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, (path, error) in enumerate(pool.map(compile_alone, chosen), 1):
            print(f"[{number}/{len(chosen)}] {path}", flush=True)
            if error:
                failed += 1
                print(error, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""List the OpenCL devices and what each can do."""

from __future__ import annotations

import argparse
import json
from typing import TextIO

import kvtrie as kv
from kvtrie.viz.table import table_text
from kvtrie.viz.words import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of text")


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    found = kv.devices()
    if arguments.json:
        print(json.dumps([describe(device) for device in found], indent=2, default=str), file=out)
        return 0 if found else 1
    if not found:
        print("no OpenCL device; `python -m kvtrie doctor` says what is missing", file=out)
        return 1
    for index, device in enumerate(found):
        facts = describe(device)
        print(f"[{index}] {facts.pop('name')}", file=out)
        rows = [("    " + name.replace("_", " "), _text(name, value)) for name, value in facts.items()]
        print(table_text(rows), file=out)
    return 0


def describe(device: kv.Device) -> dict[str, object]:
    """Everything a device reports, as plain values."""
    facts: dict[str, object] = {"name": device.name, "vendor": device.vendor, "kind": device.kind}
    facts["unified_memory"] = device.unified_memory
    facts["global_bytes"] = device.global_bytes
    return {**facts, **{name: value for name, value in device.capabilities.items() if name not in facts}}


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and "bytes" in name:
        return format_bytes(value)
    return str(value)

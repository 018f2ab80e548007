"""List what a disk tier or a saved cache holds."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from kvtrie import _core
from kvtrie.errors import ArgumentError
from kvtrie.prefix_cache import Keys
from kvtrie.viz.table import table_text
from kvtrie.viz.words import format_age, format_bytes, plural

Entry = dict[str, Any]  # a file as `_core._inspect_folder` reports it
_COLUMNS = ("namespace", "tokens", "kinds", "point", "dtype", "bytes", "age", "")
_FIGURES = (5, 6)  # of these, figures
_CLOSED = ("sealed", "key")  # not faults of a file: no key was given, or another one
_EPILOG = """Reads headers only, takes no lock and follows no link, so it may run while a cache has the folder open.
Neither tokens nor images are shown. Of sealed snapshots, without their key, only what anybody can see. A key file is
one that only you may read: a key in 64 hex digits, older ones in the lines below it; or a JSON object with the
key, or a list of keys, of each namespace. Exit code 1: some files are of no use; the last column says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", metavar="FOLDER", help="the folder of a disk tier, or one that was saved to")
    parser.add_argument("--tree", action="store_true", help="each snapshot below the one it goes on from")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--key-file", metavar="FILE", help="keys to look into sealed snapshots with")


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    keys = None if arguments.key_file is None else read_key_file(arguments.key_file)
    found = _core._inspect_folder(arguments.folder, keys)
    entries = [_summary(entry) for entry in found["files"]]
    rest = {"temporary": found["temporary"], "others": found["others"]}
    if arguments.json:
        shown = [{name: entry[name] for name in entry if name != "path"} for entry in entries]
        print(json.dumps({"snapshots": shown, **_totals(entries), **rest}, indent=1), file=out)
    else:
        ordered = _as_tree(entries) if arguments.tree else ((0, entry) for entry in _by_place(entries))
        table = table_text([_row(entry, depth) for depth, entry in ordered], _COLUMNS, right=_FIGURES)
        print(table, end="\n" if table else "", file=out)
        _print_totals(entries, rest, out)
    return 1 if any(entry["fault"] and entry["fault"] not in _CLOSED for entry in entries) else 0


def _summary(entry: Entry) -> Entry:
    """The row of one file, and its `path`: (fingerprint, namespace, the bytes of all tokens)."""
    shown = {name: entry[name] for name in ("name", "bytes", "fault", "key")}
    shown["age"] = max(0.0, time.time() - entry["modified"])
    if entry["fault"]:
        return {**shown, "path": None}
    images = entry["images"]
    cells = [image[2] for image in images if image[0] == "cells"]
    return {
        **shown,
        "fingerprint": entry["fingerprint"],
        "namespace": entry["namespace"],
        "start": entry["start"] if cells else len(entry["tokens"]),
        "end": len(entry["tokens"]),
        "kinds": _kinds(entry),
        "point": entry["point"],
        "dtypes": sorted({cache[1] for cache in entry["caches"]}),
        "path": (entry["fingerprint"], entry["namespace"], entry["tokens"].tobytes()),
    }


def _kinds(entry: Entry) -> list[str]:
    """The kinds of its caches: full, window, chunk (cells of such caches), recurrent (states)."""
    kinds = set()
    for role, cache, *_ in entry["images"]:
        shape = entry["caches"][cache][2]
        window, chunk = shape[4:6] if role != "state" else (0, 0)
        kinds.add("recurrent" if role == "state" else "window" if window else "chunk" if chunk else "full")
    return sorted(kinds)


def _by_place(entries: Sequence[Entry]) -> list[Entry]:
    """By namespace and path; what is of no use comes last."""
    return sorted(entries, key=lambda each: (bool(each["fault"]), each["path"] or (), each["name"]))


def _as_tree(entries: Sequence[Entry]) -> Iterator[tuple[int, Entry]]:
    """(depth, entry), each below the one whose path ends where its own tokens begin."""
    ends = {entry["path"]: entry["name"] for entry in entries if entry["path"]}
    children: dict[str, list[Entry]] = {}
    for entry in _by_place(entries):
        above = ""
        if entry["path"] and entry["start"] > 0:
            fingerprint, namespace, tokens = entry["path"]
            above = ends.get((fingerprint, namespace, tokens[: 4 * entry["start"]]), "")
        children.setdefault("" if above == entry["name"] else above, []).append(entry)
    waiting = [(0, entry) for entry in reversed(children.get("", []))]
    while waiting:
        depth, entry = waiting.pop()
        yield depth, entry
        waiting += [(depth + 1, each) for each in reversed(children.get(entry["name"], []))]


def _row(entry: Entry, depth: int) -> list[str]:
    size, age = format_bytes(entry["bytes"]), format_age(entry["age"])
    if entry["fault"]:
        why = f"{entry['fault']}, key {entry['key']}" if entry["fault"] in _CLOSED else entry["fault"]
        return [entry["name"][:12] + "...", "", "", "", "", size, age, why]
    span = f"[{entry['start']},{entry['end']})" if entry["start"] < entry["end"] else f"at {entry['end']}"
    kinds, dtypes = "+".join(entry["kinds"]), "+".join(entry["dtypes"])
    return ["  " * depth + _printable(entry["namespace"]), span, kinds, entry["point"] or "-", dtypes, size, age, ""]


def _totals(entries: Sequence[Entry]) -> dict[str, Any]:
    good = [entry for entry in entries if not entry["fault"]]
    return {
        "files": len(entries),
        "unusable": sum(bool(entry["fault"]) and entry["fault"] not in _CLOSED for entry in entries),
        "closed": sum(entry["fault"] in _CLOSED for entry in entries),
        "bytes": sum(entry["bytes"] for entry in entries),
        "tokens": sum(entry["end"] - entry["start"] for entry in good),
        "points": sum(bool(entry["point"]) for entry in good),
        "namespaces": len({entry["namespace"] for entry in good}),
        "fingerprints": sorted({entry["fingerprint"] for entry in good}),
    }


def _print_totals(entries: Sequence[Entry], rest: dict[str, int], out: TextIO) -> None:
    totals = _totals(entries)
    print(
        f"{totals['files']} snapshots, {totals['tokens']} tokens, {totals['points']} restore points, "
        f"{format_bytes(totals['bytes'])}, {plural(totals['namespaces'], 'namespace')}",
        file=out,
    )
    for fingerprint in totals["fingerprints"]:
        print(f"fingerprint: {_printable(fingerprint)}", file=out)
    notes = {
        "sealed, without a key here": totals["closed"],
        "of no use": totals["unusable"],
        "being written": rest["temporary"],
        "not ours": rest["others"],
    }
    for what, count in notes.items():
        if count:
            print(f"{count} {what}", file=out)


def read_key_file(path: str) -> Keys:
    """The keys in a file. No message shows what is in it. Raises ``ArgumentError``."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = "" if mode & 0o077 else file.read().strip()
    except OSError as error:
        raise ArgumentError(f"[inspect] --key-file: got {path!r} ({error.strerror}), allowed a file") from None
    if mode & 0o077:
        raise ArgumentError(f"[inspect] --key-file: got mode {mode:04o}, allowed 0600: a file that only you may read")
    try:
        if not text.startswith("{"):
            return [bytes.fromhex(line) for line in text.split()]
        given = {name: each if isinstance(each, list) else [each] for name, each in json.loads(text).items()}
        return {name: [bytes.fromhex(key) for key in keys] for name, keys in given.items()}
    except (ValueError, TypeError):
        raise ArgumentError("[inspect] --key-file: got no keys, allowed 64 hex digits each, in lines or JSON") from None


def _printable(text: str) -> str:
    """Names come from others: nothing in them may steer a terminal."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text) or "''"

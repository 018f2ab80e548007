"""Replay a trace, or make a synthetic one: which share of its tokens would a cache have had?"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import kvtrie as kv
from kvtrie.replay import (
    KINDS,
    POLICIES,
    FleetReport,
    Lengths,
    Report,
    Trace,
    of_records,
    read,
    synthesize,
    workload,
    write_mooncake,
    write_tokens,
)
from kvtrie.replay.bar import bar
from kvtrie.replay.report import format_count

from .simulate_fleet import add_fleet_arguments, run_fleet

_EPILOG = """examples:
  python -m kvtrie simulate trace.jsonl --capacity 1M,5M --policy all --plot rates.svg
  python -m kvtrie simulate --generate agents --seed 7 --capacity 200k,1M
  python -m kvtrie simulate new.jsonl --generate sessions --set sessions=500 --set more=700
  python -m kvtrie simulate trace.jsonl --replicas 10,100 --copy-per 10 --capacity 1M --routing random,affinity
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(refuse=parser.error)
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="a trace to read; with --generate: to write")
    replay = parser.add_argument_group("replay")
    replay.add_argument("--capacity", metavar="LIST", help='tokens, such as "1M,2.6M,64Ki", or "2000b" for blocks')
    replay.add_argument("--policy", default="lru", metavar="LIST", help=f"all, or some of {','.join(POLICIES)}")
    replay.add_argument("--block", type=int, default=512, help="tokens of a block in a Mooncake trace")
    replay.add_argument("--expand", action="store_true", help="make each block that many tokens, not one symbol")
    replay.add_argument("--window", type=int, default=0, help="also layers with a sliding window of so many tokens")
    replay.add_argument("--window-capacity", type=int, default=0, help="tokens that those have room for")
    replay.add_argument("--slots", type=int, default=0, help="also recurrent layers with room for so many states")
    replay.add_argument("--checkpoint-every", type=int, default=512, help="tokens between their spaced states")
    replay.add_argument("--host-capacity", type=int, default=0, help="tokens that a host tier has room for")
    replay.add_argument("--plot", metavar="FILE", help="draw hit rate over capacity (.svg, .png); needs matplotlib")
    replay.add_argument("--json", metavar="FILE", help='write all rows as JSON; "-" prints them instead of the table')
    replay.add_argument("--quiet", action="store_true", help="no progress bar")
    add_fleet_arguments(parser)
    make = parser.add_argument_group("synthetic traces")
    make.add_argument("--generate", metavar="KIND", choices=sorted(KINDS), help=f"one of {', '.join(sorted(KINDS))}")
    make.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    make.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the workload")
    make.add_argument("--format", choices=("tokens", "mooncake"), default="tokens", help="of the written trace")
    make.add_argument("--force", action="store_true", help="write over an existing file")


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    if arguments.trace is None and arguments.generate is None:
        arguments.refuse("TRACE or --generate: got none of them")
    if arguments.capacity is None and (arguments.generate is None or arguments.trace is None):
        arguments.refuse("--capacity: got none, allowed tokens such as 1M,2.6M")
    if arguments.generate is not None:
        trace = _generated(arguments, out)
    else:
        trace = read(arguments.trace, arguments.block, arguments.expand)
    if arguments.capacity is None:
        return 0
    fleet = arguments.replicas is not None
    if fleet and (arguments.plot is not None or arguments.window or arguments.slots or arguments.host_capacity):
        arguments.refuse("--replicas: allowed without --plot, --window, --slots and --host-capacity")
    report = _fleet(arguments, trace) if fleet else _replay(arguments, trace)
    if arguments.json == "-":
        print(report.to_json(), end="", file=out)
    else:
        print(report.table(), file=out)
    if arguments.json not in (None, "-"):
        _write(arguments.json, report.to_json())
    if arguments.plot is not None and isinstance(report, Report):
        report.plot(arguments.plot)
    return 0


def _replay(arguments: argparse.Namespace, trace: Trace) -> Report:
    policies = [each.strip() for each in arguments.policy.split(",")]
    with _progress(arguments.quiet) as progress:
        return kv.replay.simulate(
            trace,
            [each.strip() for each in arguments.capacity.split(",")],
            "all" if policies == ["all"] else policies,
            window=arguments.window,
            window_capacity=arguments.window_capacity,
            slots=arguments.slots,
            checkpoint_every=arguments.checkpoint_every,
            host_capacity=arguments.host_capacity,
            progress=progress or False,
        )


def _fleet(arguments: argparse.Namespace, trace: Trace) -> FleetReport:
    with _progress(arguments.quiet) as progress:
        return run_fleet(arguments, trace, progress)


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """A bar where somebody looks at it and tqdm is there; else nothing."""
    if quiet or not sys.stderr.isatty() or importlib.util.find_spec("tqdm") is None:
        yield None
        return
    with bar() as show:
        yield show


def _generated(arguments: argparse.Namespace, out: TextIO) -> Trace:
    """The synthetic trace, written where there is a place for it."""
    wanted = workload(arguments.generate, seed=arguments.seed, **_parameters(arguments))
    records = list(synthesize(wanted))
    trace = of_records(records, wanted.describe())
    if arguments.trace is None:
        return trace
    if Path(arguments.trace).exists() and not arguments.force:
        raise kv.errors.ArgumentError(
            f"[simulate] TRACE: got {arguments.trace!r}, which exists; --force writes over it"
        )
    if arguments.format == "tokens":
        lines = write_tokens(records, arguments.trace)
    else:
        lines = write_mooncake(trace, arguments.trace, arguments.block)
        trace = read(arguments.trace, arguments.block, arguments.expand)
    tokens = format_count(sum(len(request.tokens) for request in of_records(records)))
    print(f"{arguments.trace}: {lines:,} lines, {tokens} tokens requested, {wanted.describe()}", file=out)
    return trace


def _parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """--set NAME=VALUE as arguments of ``workload``: a number, true or false, or median:tenth:most."""
    found: dict[str, Lengths | int | bool] = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        try:
            numbers = [int(part) for part in value.split(":")] if value not in ("true", "false") else []
        except ValueError:
            numbers = [0, 0]
        if not equals or len(numbers) not in (0, 1, 3):
            arguments.refuse(f"--set: got {text!r}, allowed NAME=NUMBER, NAME=true or NAME=MEDIAN:TENTH:MOST")
        found[name] = Lengths(*numbers) if len(numbers) == 3 else numbers[0] if numbers else value == "true"
    return found


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise kv.errors.ArgumentError(
            f"[simulate] --json: got {path!r}, allowed a file to write: {error.strerror}"
        ) from error

"""Measure a model as llama-bench does (prompts, generation, at depths), and what its cache saves."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO, TypedDict

import kvtrie as kv
from kvtrie._processors import told
from kvtrie.viz.words import format_bytes

from .bench_runs import FirstToken, Reuse, Speed, Task, speeds
from .chat.screen import stderr_shows
from .formats import MODEL, add_device, add_formats

if TYPE_CHECKING:
    from kvtrie.models import Model


class TestFigures(TypedDict):
    """Of one ``Task``; seconds of each run, and tokens a second."""

    test: str
    prompt: int
    generated: int
    depth: int
    batch: int
    seconds: list[float]
    tokens_per_second: float
    slowest: float
    fastest: float


class FirstTokenFigures(TypedDict):
    """Of one ``FirstToken``: tokens and seconds."""

    test: str
    prompt: int
    reused: int
    computed: int
    tier: str
    seconds: list[float]
    cold_seconds: list[float]
    gain: float


class Figures(TypedDict):
    """The rows that ``--json`` writes, one for each number of threads; bytes of the weights on the device."""

    model: str
    dtype: str
    kv_dtype: str
    bytes: int
    parameters: int
    device: str
    threads: int
    tests: list[TestFigures]
    first_token: list[FirstTokenFigures]


_HISTORY = 2048  # tokens of the conversation that is gone on with, where no depth is asked for
_EPILOG = """Options and names of tests are those of llama-bench: pp512 computes a prompt of 512 tokens, tg128 computes
128 tokens one by one, pp512+tg128 one after the other, "@ d4096" behind 4,096 tokens that are there already. Lists have
commas: -d 0,4096. Figures are the median of the runs, in brackets the slowest and the fastest. The second table is the
time to the first token behind a new message of 32 tokens, in a conversation whose tokens are known (as many as the
longest of -d, or 2,048): at its end, as a branch from its middle, and at its end after it was moved to host memory or
to the disk (whose files the system may still have in memory)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL)
    parser.add_argument("-m", "--model", dest="named", metavar="MODEL", help="the same")
    add_device(parser)
    add_formats(parser)
    for flag, name, default, least, meaning in (
        ("-p", "--n-prompt", "512", 0, "tokens of a prompt; 0: no such test"),
        ("-n", "--n-gen", "128", 0, "tokens that are computed one by one; 0: no such test"),
        ("-d", "--n-depth", "0", 0, "tokens that are there before"),
        ("-b", "--batch-size", "512", 1, "tokens of a prompt in a step"),
        ("-t", "--threads", "", 1, "threads of a CPU device, each number in a process of its own (default: all)"),
    ):
        shown = f"{meaning} (default {default})" if default else meaning
        numbers = _Numbers(least)
        parser.add_argument(
            flag, name, type=numbers, default=numbers(default) if default else [], metavar="N,...", help=shown
        )
    parser.add_argument(
        "-pg", type=_Numbers(1, 2), action="append", default=[], metavar="P,G", dest="pairs",
        help="a prompt of P tokens, then G one by one (may be repeated)",
    )  # fmt: skip
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="runs of each test (default 5)")
    parser.add_argument("--no-reuse", action="store_true", help="leave out the second table")
    parser.add_argument("--json", action="store_true", help="a list for programs, of one object for each -t")


class _Numbers:
    """Reads a list with commas."""

    def __init__(self, least: int, count: int | None = None) -> None:
        self._least, self._count = least, count

    def __call__(self, text: str) -> list[int]:
        found = [int(part) for part in text.split(",") if part]
        if not found or min(found) < self._least or self._count not in (None, len(found)):
            how_many = "numbers" if self._count is None else f"{self._count} numbers"
            raise argparse.ArgumentTypeError(f"got {text}, allowed {how_many} of {self._least} or more, with commas")
        return found


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    if arguments.repetitions < 1:
        raise kv.errors.ArgumentError(f"[bench] -r: got {arguments.repetitions}, allowed 1 or more")
    if arguments.threads:
        found = [_in_a_child(arguments, count) for count in dict.fromkeys(arguments.threads)]
    else:
        found = [measure(arguments)]
    if arguments.json:
        print(json.dumps(found, indent=1), file=out)
        return 0
    lines = [*_speed_lines(found), *_reuse_lines(found)]
    print("\n".join(lines), file=out)
    return 0


def measure(arguments: argparse.Namespace) -> Figures:
    """In this process, with the threads that its drivers have."""
    chosen = kv.models.default.choose(arguments.named or arguments.model)
    if chosen.note:
        print(chosen.note, file=sys.stderr)
    precision = arguments.precision
    model = kv.models.load(chosen.path, arguments.device, arguments.dtype, precision=precision, progress=stderr_shows())
    tests = list(_tests(arguments))
    history = max(arguments.n_depth) or _HISTORY
    most = min(limit for limit in (model.config.max_position_embeddings, model.config.position_limit()) if limit)
    _check_lengths(tests, most)
    model.warm_up(arguments.kv_dtype, progress=stderr_shows())
    found: Figures = {
        "model": chosen.name,
        "dtype": model.dtype,
        "kv_dtype": arguments.kv_dtype,
        "bytes": model.nbytes,
        "parameters": parameters(model),
        "device": model.device.name,
        "threads": int(model.device.capabilities["compute_units"]),
        "tests": [_speed(each) for each in speeds(model, tests, arguments.kv_dtype, arguments.repetitions)],
        "first_token": [],
    }
    if not arguments.no_reuse:
        size = min(history, most - 64)
        with Reuse(model, size, arguments.kv_dtype, max(arguments.batch_size)) as reuse:
            found["first_token"] = [_first(each) for each in reuse.rows(arguments.repetitions)]
    return found


def _tests(arguments: argparse.Namespace) -> Iterator[Task]:
    """In llama-bench's order: prompts, generation, both, at each depth."""
    for batch in dict.fromkeys(arguments.batch_size):
        for depth in dict.fromkeys(arguments.n_depth):
            yield from (Task(count, 0, depth, batch) for count in arguments.n_prompt if count)
            yield from (Task(0, count, depth, batch) for count in arguments.n_gen if count)
            yield from (Task(prompt, count, depth, batch) for prompt, count in arguments.pairs)


def _check_lengths(tests: Sequence[Task], most: int) -> None:
    for test in tests:
        length = test.depth + test.tokens
        if length >= most:
            raise kv.errors.ArgumentError(
                f"[bench] {test.name}: got {length} tokens, allowed {most - 1}, the model's context"
            )


def parameters(model: Model) -> int:
    """Numbers in all tensors of the checkpoint that are used."""
    return sum(math.prod(shape) for shape in model.tensor_shapes(model.config).values())


def _speed(found: Speed) -> TestFigures:
    middle, slowest, fastest = found.rates
    return {
        "test": found.test.name,
        "prompt": found.test.prompt,
        "generated": found.test.generated,
        "depth": found.test.depth,
        "batch": found.test.batch,
        "seconds": list(found.seconds),
        "tokens_per_second": middle,
        "slowest": slowest,
        "fastest": fastest,
    }


def _first(found: FirstToken) -> FirstTokenFigures:
    return {
        "test": found.name,
        "prompt": found.prompt,
        "reused": found.reused,
        "computed": found.prompt - found.reused,
        "tier": found.tier,
        "seconds": list(found.seconds),
        "cold_seconds": list(found.cold),
        "gain": found.gain,
    }


def _in_a_child(arguments: argparse.Namespace, threads: int) -> Figures:
    """Drivers read how many threads they may have when a process begins."""
    command = [sys.executable, "-m", "kvtrie", "bench", "--json", *_words(arguments)]
    environment = {**os.environ, **told(threads, {})}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise kv.Error(f"[bench] -t: with {threads} threads the run failed (exit code {done.returncode})")
    (found,) = json.loads(done.stdout)
    figures: Figures = found
    return figures


def _words(arguments: argparse.Namespace) -> Iterator[str]:
    """The arguments again, without those about threads and output."""
    lists = {"-p": arguments.n_prompt, "-n": arguments.n_gen, "-d": arguments.n_depth, "-b": arguments.batch_size}
    given = {"-m": arguments.named or arguments.model, "--device": arguments.device, "--dtype": arguments.dtype}
    given |= {"--precision": arguments.precision, "--kv-dtype": arguments.kv_dtype, "-r": str(arguments.repetitions)}
    given |= {flag: ",".join(map(str, numbers)) for flag, numbers in lists.items()}
    for flag, value in given.items():
        if value is not None:
            yield from (flag, value)
    for pair in arguments.pairs:
        yield from ("-pg", ",".join(map(str, pair)))
    if arguments.no_reuse:
        yield "--no-reuse"


# ---- tables ----------------------------------------------------------------------------------------------------------


def _speed_lines(found: Sequence[Figures]) -> Iterator[str]:
    batches = {test["batch"] for each in found for test in each["tests"]}
    header = ["model", "size", "params", "device", "threads", "K and V", *(["batch"] if len(batches) > 1 else [])]
    rows = []
    for each in found:
        name = f"{each['model']} {each['dtype']}"
        size, count = format_bytes(each["bytes"]), f"{each['parameters'] / 1e6:.2f} M"
        own = [name, size, count, each["device"], str(each["threads"]), each["kv_dtype"]]
        for test in each["tests"]:
            batch = [str(test["batch"])] if len(batches) > 1 else []
            rate = f"{test['tokens_per_second']:.2f} ({test['slowest']:.2f} .. {test['fastest']:.2f})"
            rows.append([*own, *batch, test["test"], rate])
    yield from _markdown([*header, "test", "t/s"], rows)


def _reuse_lines(found: Sequence[Figures]) -> Iterator[str]:
    rows = []
    for each in found:
        for test in each["first_token"]:
            seconds, cold = sorted(test["seconds"]), sorted(test["cold_seconds"])
            rows.append([str(each["threads"]), test["test"], f"{test['prompt']:,}", f"{test['reused']:,}"])
            rows[-1] += [f"{test['computed']:,}", test["tier"], _milliseconds(seconds), _milliseconds(cold)]
            rows[-1] += [f"{test['gain']:.1f}"]
    if rows:
        header = ["threads", "first token", "prompt", "reused", "computed", "from", "ms", "ms cold", "times as fast"]
        yield ""
        yield from _markdown(header, rows)


def _milliseconds(ordered: Sequence[float]) -> str:
    return f"{statistics.median(ordered) * 1e3:.1f} ({ordered[0] * 1e3:.1f} .. {ordered[-1] * 1e3:.1f})"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table that reads well as it is, too: columns are padded."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    yield "| " + " | ".join(name.ljust(width) for name, width in zip(header, widths)) + " |"
    yield "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"
    for row in rows:
        yield "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths)) + " |"

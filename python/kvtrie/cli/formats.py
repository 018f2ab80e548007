"""Options that several commands share: which model, on which device, and in which formats it is kept.

Nothing here loads a model, or a package that is not always there.
"""

from __future__ import annotations

import argparse

from kvtrie.draft import NAMES
from kvtrie.errors import ArgumentError
from kvtrie.quality import CELL_FORMATS, CELL_PAIRS

# kv.models is not imported yet
DTYPES = ("float32", "float16", "bfloat16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "stored")
KV_HELP = f"keys and values: {', '.join(CELL_FORMATS)}, or K/V, such as q8_0/q4h"
PRECISIONS = ("auto", "exact", "fast")
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
    parser.add_argument(
        "--kv-dtype", choices=CELL_PAIRS, default="float16", metavar="FORMAT", help=f"{KV_HELP} (default float16)"
    )


def add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="auto: products of blocks by integer units, of halves by matrix instructions, where the device has them; "
        "exact: in float32; fast: as auto, with activations of 8 or 11 bits",
    )


def add_context(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Under both of its names."""
    parser.add_argument("--context", "--ctx-size", type=int, metavar="TOKENS", help=meaning)


def add_draft(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--draft",
        metavar="NAMES",
        default="none",
        help=f"guess several tokens that one step checks: {', '.join(NAMES)}; joined by commas (default none)",
    )


def draft_names(text: str, where: str) -> tuple[str, ...]:
    """The drafters that ``--draft`` names. Raises ``kv.errors.ArgumentError`` for one that there is none of."""
    names = () if text == "none" else tuple(text.split(","))
    for name in names:
        if name not in NAMES:
            raise ArgumentError(
                f"[{where}] --draft: got {name!r}, allowed {', '.join(NAMES)}, joined by commas, or none"
            )
    return names

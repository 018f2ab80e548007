"""Tokenizers of GGUF files beside those that Hugging Face transformers makes of the same files, on hostile strings.

    ./dev peers                                                                # transformers is not in .venv
    PYTHONPATH=python build/peers/bin/python tests/python/transformers_tokenizers.py [FILE ...] --seed 1 --count 10000

Without a file: SmolLM2's, as ``python -m kvtrie download`` gets it. Ids of each text, but for a leading bos, and the
texts of these and of random ids, must be equal; exits with 1 where they are not. Two rules of published tokenizers that
transformers leaves out when it reads a GGUF file are put back: the digits of ``smollm``, and NFC of ``qwen2`` and
``qwen35``. It also ignores ``add_space_prefix`` and spells added tokens with line breaks in bytes: there files differ.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import normalizers, pre_tokenizers

from hostile_texts import texts
from kvtrie.models import gguf

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import smollm2


def reference(file: Path) -> Any:
    """What transformers makes of the file's keys, as ``tokenizers.Tokenizer``, with what it leaves out."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

    fields = GGUFReader(file).fields  # transformers' own reader needs torch
    named = GGUF_TOKENIZER_MAPPING["tokenizer"].items()
    keys = {name: fields[f"tokenizer.{key}"].contents() for key, name in named if f"tokenizer.{key}" in fields}
    raw, _ = convert_gguf_tokenizer(fields["general.architecture"].contents(), keys)
    name = keys.get("pre_tokenizer_type")
    if name == "smollm":
        raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), raw.pre_tokenizer])
    if name in ("qwen2", "qwen35"):
        raw.normalizer = normalizers.NFC()
    return raw


def differences(file: Path, seed: int, count: int) -> Iterator[str]:
    """One line for each text or list of ids that the two sides disagree on."""
    ours, theirs = gguf.read(file).tokenizer, reference(file)
    assert ours is not None
    dice = random.Random(seed)
    for text in texts(count, seed):
        ids, wanted = ours.encode(text, False), theirs.encode(text, add_special_tokens=False).ids
        if ids != wanted:
            yield f"encode {text!r}: ours {ids}, theirs {wanted}"
        for tokens in (ids, dice.choices(range(ours.vocab_size), k=dice.randrange(1, 8))):
            for skip in (False, True):
                if ours.decode(tokens, skip) != theirs.decode(tokens, skip_special_tokens=skip):
                    yield f"decode {tokens}: ours {ours.decode(tokens, skip)!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    failed = False
    for file in options.file or [smollm2.path()]:
        found = list(differences(file, options.seed, options.count))
        print(f"{file.name}: seed {options.seed}, {options.count} texts, {len(found)} differences")
        print(*found[:10], sep="\n", end="\n" if found else "")
        failed |= bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

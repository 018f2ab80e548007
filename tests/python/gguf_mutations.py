"""Damages GGUF files at random: whatever becomes of them is a typed error or a model, in bounded time and memory.

A model's tokenizer is tried, too: it encodes and decodes whatever comes, and lays messages out or refuses them.

    ./dev run python tests/python/gguf_mutations.py --seed 1 --count 100000

prints the errors by kind, the slowest case and the most memory. The tests run some thousands of them.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import resource
import struct
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import kvtrie as kv
from gguf_files import checkpoint, write
from hostile_texts import texts

_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(48)), "a", "b", "ab", "\u2581", "\u2581a"]
_BYTES = ["<|end|>", "<think>", "a", "b", "c", "ab", "abc", "\u0120", "\u0120a"]
TEXTS = texts(40, seed=3)
LENGTHS = (0, 1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def _sentence_piece(writer: Any) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(_TOKENS)
    writer.add_token_scores([-float(index) for index in range(len(_TOKENS))])
    writer.add_token_types([2, 3, 3, *[6] * 48, *[1] * 5])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _byte_level(writer: Any) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(_BYTES)
    writer.add_token_types([3, 4, *[1] * 7])
    writer.add_token_merges(["a b", "ab c", "\u0120 a"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")


def samples(folder: Path) -> list[bytes]:
    """Small files of several architectures, types and tokenizers."""
    made = []
    for name, dtype, tokenizer in (
        ("llama3-scaled-bias", "q8_0", _sentence_piece),
        ("llama-gqa-tied", "q4_1", _byte_level),
        ("qwen3-5-dense", "f32", _byte_level),
        ("qwen3-next-experts", "bf16", _sentence_piece),
        ("gemma3-window-softcap", "f32", _sentence_piece),
    ):
        changes = {"query_pre_attn_scalar": 12} if name.startswith("gemma") else {}
        path = write(*checkpoint(name, **changes), folder / f"{name}.gguf", dtype, tokenizer=tokenizer)
        made.append(path.read_bytes())
    return made


def damaged(whole: bytes, dice: random.Random) -> bytes:
    """One to four changes, most of them in the header."""
    data = bytearray(whole)
    header = whole.index(b"token_embd.weight") + 4096
    for _ in range(dice.randrange(1, 5)):
        kind = dice.randrange(7)
        at = dice.randrange(min(header, len(data)) if dice.random() < 0.9 else len(data))
        if kind == 0:
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            data[at] = dice.randrange(256)
        elif kind == 2:
            data[at : at + 8] = struct.pack("<Q", dice.choice(LENGTHS))
        elif kind == 3:
            data[at : at + 4] = struct.pack("<I", dice.choice(LENGTHS) & 0xFFFFFFFF)
        elif kind == 4:
            source = dice.randrange(max(len(data) - 64, 1))
            data[at : at + 16] = data[source : source + 16]
        elif kind == 5 and dice.random() < 0.3:
            del data[max(at, 1) :]
        else:
            del data[at : at + dice.randrange(1, 9)]
        if not data:
            break
    return bytes(data)


def use(model: Any, dice: random.Random) -> None:
    """Text to ids and back. Raises ``AssertionError`` for an id outside the vocabulary."""
    try:
        tokenizer = model.tokenizer
    except kv.errors.NotSupportedError:
        return
    for text in [*dice.sample(TEXTS, 4), "ab <s><|end|> abc"]:
        ids = tokenizer.encode(text)
        assert all(0 <= token < model.config.vocab_size for token in ids), f"{text!r}: {ids}"
        tokenizer.decode(ids)
    if tokenizer.chat_template is not None:
        with contextlib.suppress(kv.errors.ArgumentError):
            tokenizer.apply_chat_template([{"role": "user", "content": "a"}])


def play(seed: int, count: int, folder: Path) -> tuple[Counter[str], float]:
    """(outcomes, seconds of the slowest case). Raises what is neither a typed error nor a model, naming the case."""
    logging.getLogger("gguf").setLevel(logging.ERROR)
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    wholes = samples(folder)
    for case in range(count):
        dice = random.Random(f"{seed} {case}")
        path = folder / "damaged.gguf"
        path.write_bytes(damaged(dice.choice(wholes), dice))
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", kv.errors.IgnoredWarning
                )  # damage makes keys that nobody knows, and equal texts
                use(kv.models.load(path), dice)
            outcomes["a model"] += 1
        except (kv.errors.FormatError, kv.errors.NotSupportedError, kv.errors.ArgumentError) as error:
            if not str(error).startswith("[models"):
                raise AssertionError(f"seed {seed}, case {case}: {error}") from error
            outcomes[type(error).__name__] += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed}, case {case}: {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.perf_counter() - start)
    return outcomes, slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcomes, slowest = play(options.seed, options.count, Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"seed {options.seed}: {dict(outcomes)}; the slowest took {slowest:.2f} s; at most {peak:.0f} MiB in all")


if __name__ == "__main__":
    sys.exit(main())

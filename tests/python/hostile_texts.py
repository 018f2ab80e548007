"""Random texts that tokenizers get wrong: all of Unicode, and what their rules are about.

The same seed gives the same texts on every Python of this version of Unicode. None holds a surrogate.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

# Words of many scripts, digits of several, what contractions and NFC are about, and spaces of all kinds.
FOREIGN = (
    " Gr\u00f6\u00dfe, l'\u00e9t\u00e9 d'aujourd'hui, na\u00efve; \u041f\u0440\u0438\u0432\u0435\u0442"
    " \u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f \uff11\uff12\uff13 \uc548\ub155"
    " \u0645\u0631\u062d\u0628\u0627 42 \u0928\u092e\u0938\u094d\u0924\u0947 I'm you're WE'LL don't 3.14159 1234567"
    " x+=1; $a<b>^~|`\t\t  \r\n\r\n   e\u0301 \u212b \ufb01 \U0001f642\U0001f469\u200d\U0001f467 \u00bd \u2167"
    " \u00a0 \u2581\n"
)
CORPUS = (Path(__file__).parents[2] / "python/kvtrie/data/text.md").read_text(encoding="utf-8") + FOREIGN * 8
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<think>", "\n\n\n"]

_WORDS = CORPUS.split(" ")
_ODD = [*SPECIAL, *PLAIN, "<|im_", "|>", "<0x41>", "<0xE2>", "<s>", "</s>", "<unk>", "'S", "'ll", "'\u017f", "\ufffd"]
_ODD += ["\u2581", "\u2581\u2581\u2581", "\u0f00", "\ufeff", "\ufdfa", "\u0149", "\u0345", "\u1e9e", "\U0010ffff"]
_SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()] + ["\u200b", "\u2060", "\r\n", "    "]
_CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x202E, 0x2066, 0x2069, 0x200E, 0xE0001)]
_MARKS = [chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code)) in ("Mn", "Mc", "Me")]
_DIGITS = [chr(code) for code in range(0x20000) if unicodedata.category(chr(code)) in ("Nd", "Nl", "No")]
_FACES = ["\U0001f469", "\U0001f3fd", "\u200d", "\ufe0f", "\u2764", "\U0001f1e9", "\U0001f1ea", "1\u20e3", "\U0001f642"]
_JAMO = [chr(code) for code in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3))]
_RIGHT_TO_LEFT = [chr(code) for code in (*range(0x5D0, 0x5EB), *range(0x620, 0x660), *range(0x700, 0x750))]
_LETTERS = [(0x41, 0x5B), (0x61, 0x7B), (0xC0, 0x250), (0x370, 0x530), (0x905, 0x93A), (0xE01, 0xE31), (0x3041, 0x3097)]
_LETTERS += [(0x4E00, 0x9FA6), (0xAC00, 0xD7A4), (0x10A0, 0x1100), (0x1E00, 0x2000), (0x10400, 0x10450)]


def _several(characters: Sequence[str], most: int) -> Callable[[random.Random], str]:
    return lambda dice: "".join(dice.choices(characters, k=dice.randrange(1, most + 1)))


def _anything(dice: random.Random) -> str:
    """Half of a text's characters are of the first plane, where most rules are."""
    codes = (dice.randrange(dice.choice([0x80, 0x3000, 0x110000])) for _ in range(dice.randrange(1, 6)))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def _mixed_scripts(dice: random.Random) -> str:
    return "".join(chr(dice.randrange(*dice.choice(_LETTERS))) for _ in range(dice.randrange(1, 12)))


def _marked(dice: random.Random) -> str:
    """Letters under marks in any order, which NFC sorts and joins."""
    several = _several(_MARKS[:112] if dice.random() < 0.7 else _MARKS, 4)
    return "".join(_mixed_scripts(dice)[0] + several(dice) for _ in range(dice.randrange(1, 4)))


def _run(dice: random.Random) -> str:
    """One thing again and again, seldom very often."""
    unit = dice.choice([_anything, _spaces, _odd, _digits, _faces])(dice)[:4]
    return unit * dice.choice([2, 3, 9, 65, 300 if dice.random() < 0.2 else 5])


_odd = _several(_ODD, 2)
_spaces = _several(_SPACES, 5)
_digits = _several(_DIGITS, 7)
_faces = _several(_FACES, 6)
_PARTS: list[Callable[[random.Random], str]] = [
    lambda dice: dice.choice(_WORDS) + " " * dice.randrange(3),
    lambda dice: dice.choice(_WORDS) + dice.choice(_SPACES),
    lambda dice: str(dice.randrange(10 ** dice.randrange(1, 30))),
    _anything,
    _odd,
    _spaces,
    _digits,
    _faces,
    _mixed_scripts,
    _marked,
    _run,
    _several(_CONTROLS, 3),
    _several(_JAMO, 6),
    _several(_RIGHT_TO_LEFT, 8),
]


def texts(count: int, seed: int) -> list[str]:
    """The empty text, and random ones of 1 to 11 parts."""
    dice = random.Random(seed)
    made = ("".join(dice.choice(_PARTS)(dice) for _ in range(dice.randrange(1, 12))) for _ in range(count - 1))
    return ["", *made]

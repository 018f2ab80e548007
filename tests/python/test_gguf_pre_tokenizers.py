"""Each name of a pre-tokenizer that a GGUF file may have, against its rule in Python (gguf_cuts.py)."""

from __future__ import annotations

import unicodedata

import pytest
from tokenizers import decoders

from circles import CIRCLE
from gguf_cuts import CUTS, pieces
from hostile_texts import texts
from kvtrie.models.gguf.pre_tokenizers import RULES, Rule, pre_tokenizer

COUNT = {"test": 30, "ci": 600, "soak": 6_000}[CIRCLE]
MARKED = (
    "It's 1234567.89, WE'RE here: they'LL go\u2014don't!\r\n\r\n  x\t\ty   z/\n/",
    "IMGIMGABZ <sentinel:42> abc123def 12 345 6789\u0660\u0661\u0662\u0663 \u00bd\u00b2",
    "\u6f22\u5b57ab \u3042\u30a2 \ud55c\uae00\u3131 \u0e44\u0e17\u0e22 CamelCase\u00c9t\u00e9 a\u0301b\u0308 \u01c5x",
    " " * 700 + "a" + "\n" * 5 + " \u3000\u00a0b",
)
# Rules that are the same for several names, and how they are applied, but for what they are called.
DISTINCT: dict[Rule, str] = {rule: name for name, rule in reversed(RULES.items())}


def test_every_name_is_tried() -> None:
    assert set(CUTS) == set(RULES)


@pytest.mark.parametrize("name", DISTINCT.values())
def test_cuts(name: str) -> None:
    """Unicode's tables are of different versions in Python and the library: letters that one does not know are left
    out."""
    ours = pre_tokenizer(RULES[name])
    for text in [*MARKED, *filter(_known, texts(COUNT, seed=21))]:
        found = [text[begin:end] for _, (begin, end) in ours.pre_tokenize_str(text)]
        assert [piece for piece in found if piece] == pieces(text, CUTS[name]), f"{name}: {text!r}"


def _known(text: str) -> bool:
    return not any(unicodedata.category(each) == "Cn" for each in text)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not rule.raw])
def test_names_of_a_rule_cut_alike(name: str) -> None:
    for text in MARKED:
        found = [piece for piece, _ in pre_tokenizer(RULES[name]).pre_tokenize_str(text)]
        assert [decoders.ByteLevel().decode([piece]) for piece in found if piece] == pieces(text, CUTS[name]), text

"""Prompts and the language of templates beside those of Hugging Face transformers: equal, or both refuse.

Here are templates of our own; tests/campaign/templates.py plays all that llama.cpp and vLLM ship.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("transformers")

from circles import CIRCLE
from small_templates import TEMPLATES, TOOL_USE
from template_conversations import fixed, random_conversation
from template_sweep import STATEMENTS, VALUES, random_templates
from template_twins import Twins, same_language

RANDOM = {"test": 4, "ci": 60, "soak": 600}[CIRCLE]  # conversations of each template
SWEEP = {"test": 120, "ci": 2_500, "soak": 25_000}[CIRCLE]  # templates of one expression


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_are_those_of_transformers(name: str) -> None:
    twins, dice = Twins(TEMPLATES[name]), random.Random(f"33 {name}")
    cases = [*fixed(), *((f"random {at}", random_conversation(dice)) for at in range(RANDOM))]
    found = {what: twins.of(conversation) for what, conversation in cases}
    different = {what: twin for what, twin in found.items() if twin.outcome == "DIFFERENT"}
    assert not different, different
    counts = Counter(twin.outcome for twin in found.values())
    assert counts["equal"] + counts["another form"] > len(cases) // 4, counts


def test_tools_choose_the_template_as_in_transformers() -> None:
    twins = Twins(TOOL_USE)
    outcomes = Counter(twins.of(conversation).outcome for _, conversation in fixed())
    assert outcomes["equal"] > 50 and outcomes["DIFFERENT"] == 0, outcomes


def test_the_language_is_that_of_transformers() -> None:
    dice = random.Random(33)
    cases: list[tuple[str, dict[str, Any]]] = [
        (source, {"a": dice.choice(VALUES), "b": dice.choice(VALUES)}) for source in STATEMENTS
    ]
    cases += random_templates(dice, SWEEP)
    different = [(source, values) for source, values in cases if not same_language(source, values)]
    assert not different, different[:5]

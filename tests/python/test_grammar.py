"""A grammar library drives the choice of tokens: whatever is asked and drawn, the text parses.

The recipe is the one of docs/text.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import pytest

import kvtrie as kv

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["lock", "cache", None]},
            "size": {"type": "integer", "minimum": -5, "maximum": 1000},
            "safe": {"type": "boolean"},
        },
        "required": ["name", "kind", "size"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {
            "type": "object",
            "properties": {"at": {"type": "string", "pattern": "^[0-9]{2}:[0-9]{2}$"}, "to": {"$ref": "#/$defs/place"}},
            "required": ["at", "to"],
            "additionalProperties": False,
        },
        "$defs": {"place": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 6}]}},
    },
}
COMPACT = {"whitespace_flexible": False}


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """What docs/text.md defines: the model, the vocabulary and the processor ``Following``."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "text.md").read_text(), flags=re.M | re.S)
    names: dict[str, Any] = {"kv": kv, "model": kv.models.load(ROOT / "examples" / "tiny")}
    exec(next(block for block in blocks if "llguidance" in block), names)
    return names


def completed(model: Any, **choice: Any) -> str:
    return str(model.complete("A cache is", max_tokens=120, **choice))


def chatted(model: Any, **choice: Any) -> str:
    return str(model.chat([{"role": "user", "content": "Describe a lock."}], max_tokens=120, **choice))


def generated(model: Any, **choice: Any) -> str:
    tokens = kv.generate(model, model.tokenizer.encode("A lock"), 120, **choice)
    return str(model.tokenizer.decode(list(tokens), skip_special_tokens=True))


WAYS: dict[str, Callable[..., str]] = {"complete": completed, "chat": chatted, "generate": generated}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCHEMAS)
def test_json_parses(name: str, way: str, recipe: dict[str, Any]) -> None:
    """Greedy, and drawn so hot that without the grammar nothing would parse."""
    schema = SCHEMAS[name]
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, COMPACT)
    for seed, temperature in enumerate([0.0, 0.8, 1.5, 3.0]):
        print(f"seed {seed}, temperature {temperature}")
        processors = [recipe["Following"](grammar)]
        text = WAYS[way](recipe["model"], logits_processors=processors, temperature=temperature, seed=seed)
        jsonschema.validate(json.loads(text), schema)


def test_a_lark_grammar_in_a_batch(recipe: dict[str, Any]) -> None:
    """Each text of a batch keeps to a grammar of its own; one that has none is not held to any."""
    dates = 'start: DAY " of " MONTH\nDAY: /[12]?[0-9]/\nMONTH: "May" | "June"'
    sums = 'start: NUMBER (("+" | "-") NUMBER)~1..4\nNUMBER: /[0-9]{1,3}/'
    model, following = recipe["model"], recipe["Following"]
    with kv.Batch(model, max_sessions=3) as batch:
        answers = [
            batch.add("When?", max_tokens=40, temperature=2.0, seed=seed, logits_processors=processors)
            for seed, processors in enumerate([[following(dates)], [following(sums)], []])
        ]
        while batch.step():
            pass
    date, total, free = (model.tokenizer.decode(answer.tokens, skip_special_tokens=True) for answer in answers)
    assert re.fullmatch(r"[12]?[0-9] of (May|June)", date)
    assert re.fullmatch(r"[0-9]{1,3}([-+][0-9]{1,3}){1,4}", total)
    assert not re.fullmatch(r"[-+0-9]+", free)


def test_a_grammar_that_is_none_is_an_error(recipe: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no_such_rule"):
        completed(recipe["model"], logits_processors=[recipe["Following"]("start: no_such_rule")])

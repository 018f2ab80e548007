"""Answers that follow a schema or a grammar: whatever is drawn is valid, and no schema takes the server with it."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import kvtrie as kv
from kvtrie.serve import grammar
from kvtrie.serve.grammar import Following, Grammars
from processes import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "kind": {"enum": ["lock", "cache", None]},
            "size": {"type": "integer", "minimum": -5, "maximum": 1000},
            "safe": {"type": "boolean"},
        },
        "required": ["name", "kind"],
        "additionalProperties": False,
    },
    "array": {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {
            "type": "object",
            "properties": {"at": {"type": "string", "pattern": "^[0-9]{2}:[0-9]{2}$"}, "to": {"$ref": "#/$defs/to"}},
            "required": ["at", "to"],
            "additionalProperties": False,
        },
        "$defs": {"to": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 6}]}},
    },
    "union": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "a"}, "x": {"type": "integer", "minimum": 0, "maximum": 99}},
                "required": ["kind", "x"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "b"}},
                "required": ["kind"],
                "additionalProperties": False,
            },
        ]
    },
    "choice": {"enum": ["yes", "no", 1, None]},
}
CHOICES = [(0.0, 0), (1.0, 1), (1.0, 2), (1.0, 3)]


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.load(ROOT / "examples" / "tiny")


@pytest.fixture(scope="module")
def grammars(model: Any) -> Grammars:
    return Grammars(model)


def said(model: Any, tokens: Any) -> str:
    return str(model.tokenizer.decode([each for each in tokens if each not in model.end_tokens]))


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_are_valid_in_a_batcher(name: str, model: Any, grammars: Grammars) -> None:
    schema = SCHEMAS[name]
    with kv.Batcher(model, max_sessions=4) as batcher:
        requests = [
            batcher.submit(
                "A cache is", 400, temperature=heat, seed=seed, logits_processors=[grammars.json_schema(schema)]
            )
            for heat, seed in CHOICES
        ]
        for request in requests:
            request.result(timeout=PATIENCE)
            assert request.finish_reason == "stop"
            jsonschema.validate(json.loads(said(model, request.tokens)), schema)


def test_any_object_is_one(model: Any, grammars: Grammars) -> None:
    """It need not end; what was written until then goes on to be one."""
    for heat, seed in [*CHOICES, (1.0, 4), (1.0, 5)]:
        tokens = list(
            kv.generate(model, "A", 60, temperature=heat, seed=seed, logits_processors=[grammars.json_object()])
        )
        text = said(model, tokens)
        assert text.startswith("{"), f"seed {seed}"
        if tokens[-1] in model.end_tokens:
            assert isinstance(json.loads(text), dict)


def test_other_grammars(model: Any, grammars: Grammars) -> None:
    made = [
        (grammars.regex("[0-9]{1,3}(-[a-f]{2}){1,3}"), r"[0-9]{1,3}(-[a-f]{2}){1,3}"),
        (grammars.lark('start: DAY " of " ("May" | "June")\nDAY: /[12]?[0-9]/'), r"[12]?[0-9] of (May|June)"),
    ]
    for processor, pattern in made:
        text = said(model, kv.generate(model, "A", 60, temperature=1.0, seed=3, logits_processors=[processor]))
        assert re.fullmatch(pattern, text)


# ---- the processor ---------------------------------------------------------------------------------------------------


def allowed(processor: Following, tokens: list[int], size: int) -> np.ndarray[Any, Any]:
    logits = np.zeros(size, np.float32)
    processor(np.array(tokens, np.int32), logits)
    found: np.ndarray[Any, Any] = np.flatnonzero(logits == 0)
    return found


def test_it_follows_the_tokens_that_it_is_shown(model: Any, grammars: Grammars) -> None:
    """Repeated, forgotten, and other than before: always what a fresh one says about the same tokens."""
    size, end = model.config.vocab_size, model.end_tokens[0]
    pattern = "(ab|cd){2}x?"
    used, prompt = grammars.regex(pattern), [7, 8, 9]
    texts = ["", "ab", "ab", "abcd", "abcdx", "ab", "cd", "", "cdcd", "cdab", "abab"]
    for text in texts:
        tokens = [found for letter in text if (found := model.tokenizer.token_id(letter)) is not None]
        fresh = grammars.regex(pattern)
        allowed(fresh, prompt, size)
        ids = allowed(fresh, prompt + tokens, size)
        assert allowed(used, prompt + tokens, size).tolist() == ids.tolist() and len(ids)
        assert (end in ids) == (re.fullmatch(pattern, text) is not None)
    assert allowed(used, [*prompt, *tokens, end], size).tolist() == [end]  # and again, where it goes on all the same


def test_logits_may_be_longer_or_shorter_than_the_vocabulary(model: Any, grammars: Grammars) -> None:
    whole = allowed(grammars.regex("[a-z]+"), [5], model.config.vocab_size)
    assert allowed(grammars.regex("[a-z]+"), [5], model.config.vocab_size + 100).tolist() == whole.tolist()
    assert allowed(grammars.regex("[a-z]+"), [5], 100).tolist() == [each for each in whole if each < 100]


def test_special_tokens_are_no_letters(model: Any, grammars: Grammars) -> None:
    special = [model.tokenizer.special_id(text) for text in ("<|bos|>", "<|user|>", "<|end|>")]
    ids = allowed(grammars.regex("(.|\n)+"), [5], model.config.vocab_size)
    assert len(ids) > 2000 and not set(special) & set(ids.tolist())


def test_a_grammar_may_begin_behind_a_text(model: Any, grammars: Grammars) -> None:
    size = model.config.vocab_size
    processor = grammars.regex("ab", behind="</think>")
    tokens = [5]
    for token in model.tokenizer.encode("Hm. </think>", add_special_tokens=False):
        assert len(allowed(processor, tokens, size)) == size
        tokens.append(token)
    first = allowed(processor, tokens, size).tolist()
    assert {model.tokenizer.decode([token]) for token in first} <= {"a", "ab"}
    assert len(allowed(processor, tokens[:3], size)) == size


def test_a_request_that_gave_its_room_back_goes_on(
    model: Any, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has no room for all four: those added last begin again, with what they have said."""
    item = {"type": "string", "minLength": 40, "maxLength": 60, "pattern": "^[a-z ]*$"}
    schema = {"type": "array", "items": item, "minItems": 2, "maxItems": 2}
    begun: list[int] = []
    begin = kv.PrefixCache.begin

    def counted(self: Any, tokens: Any, **others: Any) -> Any:
        begun.append(len(tokens))
        return begin(self, tokens, **others)

    monkeypatch.setattr(kv.PrefixCache, "begin", counted)
    cache = kv.PrefixCache(model.caches(capacity=100), fingerprint=model.fingerprint)
    with kv.Batcher(model, cache, max_sessions=4) as batcher:
        requests = [
            batcher.submit(
                f"A lock number {number} is a thing that",
                120,
                temperature=1.0,
                seed=number,
                logits_processors=[grammars.json_schema(schema)],
            )
            for number in range(4)
        ]
        texts = []
        for request in requests:
            request.result(timeout=PATIENCE)
            texts.append(json.loads(said(model, request.tokens)))
    assert len(begun) > 4 and max(begun) > 20  # some began again, behind their prompt
    for text in texts:
        assert len(text) == 2 and all(re.fullmatch("[a-z ]{40,60}", each) for each in text)


# ---- what is refused -------------------------------------------------------------------------------------------------


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def two_of(place: str) -> list[dict[str, str]]:
    return [{"$ref": place}, {"$ref": place}]


CYCLE: dict[str, Any] = {}
CYCLE["items"] = CYCLE
REFUSED: dict[str, tuple[Any, str]] = {
    "deep": (nested(70), "depth 71, allowed 64"),
    "very deep": (nested(2000), "no JSON|depth"),
    "contains itself": (CYCLE, "no JSON"),
    "no JSON": ({"const": object()}, "no JSON"),
    "not a number": ({"const": float("nan")}, "no JSON"),
    "long": ({"enum": ["x" * 300_000]}, "characters, allowed 262144"),
    "refers to itself": ({"$ref": "#"}, "refuses"),
    "circle": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "refuses"),
    "no place": ({"$ref": "#/$defs/none"}, "does not exist"),
    "remote": ({"$ref": "http://127.0.0.1:9/schema.json"}, "refuses"),
    "unknown type": ({"type": "strin"}, "Invalid type: strin"),
    "unknown word": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "look ahead": ({"type": "string", "pattern": "^(?=a)b$"}, "look-around"),
    "nothing": ({"enum": []}, "refuses"),
    "surrogate": ({"const": "\ud800"}, "refuses"),
    "divisor": ({"type": "integer", "multipleOf": 999_999_937, "minimum": -(10**15), "maximum": 10**15}, "refuses"),
    "patterns all at once": (
        {"allOf": [{"type": "string", "pattern": f".*{letter}.*"} for letter in "abcdefghijklmnopqrst"]},
        "takes more to compile, allowed 3 seconds and 1024 MiB",
    ),
}


def processor_seconds() -> float:
    """Of this process and of its children that have ended; however busy the machine is with something else."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def but(names: Iterable[str], slow: str) -> list[Any]:
    """Names as parameters, of which one takes seconds."""
    return [pytest.param(name, marks=pytest.mark.ci) if name == slow else name for name in names]


@pytest.mark.parametrize("name", but(REFUSED, "patterns all at once"))
def test_schemas_that_are_refused(name: str, grammars: Grammars) -> None:
    schema, message = REFUSED[name]
    began = processor_seconds()
    with pytest.raises(kv.errors.ArgumentError, match=rf"^\[serve\] response_format: .*({message})"):
        grammars.json_schema(schema)
    assert processor_seconds() - began < 40


BOUNDED: dict[str, Any] = {
    "doubling": {
        "$ref": "#/$defs/a0",
        "$defs": {**{f"a{n}": {"anyOf": two_of(f"#/$defs/a{n + 1}")} for n in range(30)}, "a30": {"const": 1}},
    },
    "recursive": {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
    "repeated repetitions": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
    "far back": {"type": "string", "pattern": "^.*a.{200}$"},
    "ambiguous": {"type": "string", "pattern": "^(a|a)*(a|aa)*(([a-z]+)*[0-9]+)*b$"},
    "long texts": {"type": "string", "minLength": 100_000, "maxLength": 1_000_000},
    "many items": {"type": "array", "items": nested(5), "minItems": 100_000, "maxItems": 1_000_000},
    "many properties": {"properties": {f"p{n}": {"type": "string"} for n in range(3000)}},
    "many values": {"enum": [f"value {n}" for n in range(5000)]},
}


@pytest.mark.parametrize("name", but(BOUNDED, "many properties"))
def test_schemas_that_are_bounded(name: str, model: Any, grammars: Grammars) -> None:
    """They are refused, fail their request, or each step takes little time."""
    began = processor_seconds()
    processor = grammars.json_schema(BOUNDED[name])
    assert processor_seconds() - began < 20
    chance, tokens, slowest = np.random.default_rng(1), [5], 0.0
    for _ in range(150):
        began = processor_seconds()
        try:
            ids = allowed(processor, tokens, model.config.vocab_size)
        except kv.errors.ArgumentError:  # the request would fail with it
            break
        slowest = max(slowest, processor_seconds() - began)
        ids = ids[ids != model.end_tokens[0]]
        if not len(ids):
            break
        tokens.append(int(chance.choice(ids)))
    assert slowest < 2


def test_other_grammars_that_are_refused(grammars: Grammars) -> None:
    with pytest.raises(kv.errors.ArgumentError, match=r"^\[serve\] response_format: .*no_such_rule"):
        grammars.lark("start: no_such_rule")
    with pytest.raises(kv.errors.ArgumentError, match=r"^\[serve\] response_format: "):
        grammars.regex("(")
    with pytest.raises(kv.errors.ArgumentTypeError):
        grammars.json_schema([])  # type: ignore[arg-type]


def test_without_the_library_it_says_how_to_install_it(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    made = Grammars(model)
    for make in (made.json_object, lambda: made.lark("start:"), lambda: made.regex("a")):
        with pytest.raises(kv.errors.NotSupportedError, match=r"needs llguidance: pip install 'kvtrie\[serve\]'$"):
            make()


def test_the_vocabulary_and_a_grammar_are_made_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []
    monkeypatch.setattr(grammar, "_compile_elsewhere", lambda tried, _: tries.append(tried))
    grammars, made = Grammars(model), []
    threads = [threading.Thread(target=lambda: made.append(grammars.json_object())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4 and len({id(each) for each in made}) == 4
    count = len(tries)
    grammars.json_object()
    assert len(tries) == count

"""The parts of a request beside its prompt: whose state it shares, and the schema that its answer follows.

A salt is a namespace within that of the key; requests with another salt, or none, find nothing of it. Names are made
with digests, so that no salt can spell the namespace of another key.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import NamedTuple, Optional

from .._options import SamplingOptions
from .failures import Refusal
from .json_values import JsonObject, JsonView
from .openai_schema import ChatRequest, Choosing
from .rules import Kind, Rule

ONCE = " once "  # in the namespace of a request that is alone
_SEEDS = 1 << 64
_RULES: Mapping[str, Kind] = {
    "guided_regex": "pattern",
    "regex": "pattern",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "ebnf": "grammar",
}
_RULES_WITHIN: Mapping[str, Kind] = {"regex": "pattern", "choice": "choice", "grammar": "grammar"}
LEAST_TOP_P = 1e-9  # what 0 means: the likeliest token alone


def sampling(default: float, temperature: float | None, seed: int | None, **given: object) -> SamplingOptions:
    """``default``: the temperature where none was given. Of the others, those that are None were not given."""
    options = SamplingOptions(temperature=default if temperature is None else temperature)
    given["seed"] = None if seed is None else seed % _SEEDS
    options.update({name: value for name, value in given.items() if value is not None})  # type: ignore[typeddict-item]
    return options


class Schema(NamedTuple):
    """``value``: None where none was asked for; {}: any JSON object. ``field``: what asked for it. ``rule``: what the
    answer has to be instead."""

    value: Optional[JsonView] = None
    field: str = "response_format"
    rule: Optional[Rule] = None


def namespace_of(space: str, salt: str | None, alone: bool = False) -> str:
    """The namespace of a request: ``space``, or one within it that has ``salt``, or, ``alone``, one of its own."""
    if alone:
        return f"{space}{ONCE}{secrets.token_hex(16)}"
    return space if salt is None else f"{space} salt {hashlib.sha256(salt.encode('utf-8', 'replace')).hexdigest()}"


def schema_of(body: Choosing) -> Schema:
    """By any of its names. Raises ``Refusal`` (400) where there are two, or what is no schema."""
    found = [each for each in (_of_format(body), *_of_others(body)) if each is not None]
    if len(found) > 1:
        fields = " and ".join(each.field for each in found)
        raise Refusal(400, f"{found[1].field}: got {fields}, allowed one of them", param=found[1].field)
    return found[0] if found else Schema()


def _of_format(body: Choosing) -> Schema | None:
    wanted = body.response_format if isinstance(body, ChatRequest) else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Schema({})
    if wanted.json_schema is None:
        raise Refusal(400, "response_format.json_schema: missing", param="response_format.json_schema")
    return Schema(wanted.json_schema.schema_)


def _of_others(body: Choosing) -> list[Schema]:
    found = []
    if body.guided_json is not None:
        found.append(_parsed(body.guided_json, "guided_json"))
    if body.json_schema:
        found.append(Schema(body.json_schema, "json_schema"))
    outputs = body.structured_outputs
    if outputs is not None and outputs.structural_tag is not None:
        field = "structured_outputs.structural_tag"
        said = f"{field}: got a field that is not obeyed here, allowed instead: `structured_outputs.json`"
        raise Refusal(400, said, code="unsupported_parameter", param=field)
    found += [Schema(None, rule.field, rule) for rule in _rules_of(body)]
    if outputs is not None and outputs.json_ is not None:
        found.append(_parsed(outputs.json_, "structured_outputs.json"))
    elif outputs is not None and outputs.json_object:
        found.append(Schema({}, "structured_outputs.json_object"))
    return found


def _rules_of(body: Choosing) -> list[Rule]:
    """By all of their names."""
    found = [Rule(kind, getattr(body, name), name) for name, kind in _RULES.items() if getattr(body, name) is not None]
    outputs = body.structured_outputs
    for name, kind in _RULES_WITHIN.items():
        value = None if outputs is None else getattr(outputs, name)
        if value is not None:
            found.append(Rule(kind, value, f"structured_outputs.{name}"))
    return found


def _parsed(given: JsonObject | str, field: str) -> Schema:
    try:
        value = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refusal(400, f"{field}: got what is no JSON object, allowed a JSON schema", param=field)
    return Schema(value, field)

"""How hard a model is to think, in the words of its chat template.

A template has a variable ``reasoning_effort``, or ``enable_thinking``, which is on or off, or neither.
"""

from __future__ import annotations

from ..models.tokenizer import Tokenizer
from .failures import Refusal
from .json_values import JsonObject


def thinking_variables(tokenizer: Tokenizer, effort: str | None, tools: object, param: str) -> JsonObject:
    """Variables of the template. ``effort``: "none", "low", ...; None: as the template has it; "on": not how hard.

    Raises ``Refusal`` (400) naming ``param`` where the template cannot be told.
    """
    names = tokenizer.template(tools=tools or None).names
    if effort is None:
        return {}
    if "reasoning_effort" in names and effort != "on":
        return {"reasoning_effort": effort}
    if "enable_thinking" in names:
        return {"enable_thinking": effort != "none"}
    if effort == "none" or "reasoning_effort" in names:
        return {}
    message = f"{param}: this model's chat template has no such setting, allowed none"
    raise Refusal(400, message, code="unsupported_parameter", param=param)

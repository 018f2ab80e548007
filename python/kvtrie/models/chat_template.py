"""A checkpoint's chat template, run with limits on work and memory.

A chat template is a program from a file that anybody may have written. It runs in jinja2's immutable sandbox, sees
messages, special tokens and the date only, and has a budget: each round of a loop, each call and each character that it
makes or says takes some of it. What would make a long text at once (``"x" * 10**9``, ``"%999999999d"``) is paid for
before it is made. So a template that would run for ever, or fill the memory, ends with an error in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from jinja2 import TemplateError, meta

from .._arguments import text
from ..errors import ArgumentError
from . import template_prices as prices
from .template_environment import environment

BUDGET = 1 << 26  # characters, beside what the messages bring


class ChatTemplate:
    """One compiled template. Read-only and safe to share between threads.

    ``names`` are the variables that it asks for. Raises ``kv.ArgumentError`` when it is no template.
    """

    def __init__(self, source: str) -> None:
        made = environment()
        text(source, "tokenizer", "chat template")
        if len(source) > prices.LONGEST:
            raise ArgumentError(f"[tokenizer] chat template: got {len(source)} characters, allowed {prices.LONGEST}")
        try:
            self.names: frozenset[str] = frozenset(meta.find_undeclared_variables(made.parse(source)))
            self._template = made.from_string(source)
        except (TemplateError, RecursionError, SyntaxError) as error:  # Python's, for a `break` outside a loop
            raise ArgumentError(f"[tokenizer] chat template: got one that cannot be compiled: {error}") from error

    def render(self, values: Mapping[str, object]) -> str:
        """The text. Raises ``kv.ArgumentError`` when the template refuses the values, fails, or takes too much work."""
        try:
            budget = prices.Budget(BUDGET + prices.FOR_EACH * prices.characters(values))
        except RecursionError as error:
            raise ArgumentError("[tokenizer] messages: got some that contain themselves, allowed trees") from error
        token = prices.current.set(budget)
        try:
            return str(self._template.render(values))
        except prices.TooMuchWork as error:
            raise ArgumentError(f"[tokenizer] chat template: {error}") from error
        except Exception as error:
            text = str(error) or type(error).__name__
            raise ArgumentError(f"[tokenizer] the chat template refused the messages: {text}") from error
        finally:
            prices.current.reset(token)

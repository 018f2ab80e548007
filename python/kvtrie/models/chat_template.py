"""A checkpoint's chat template, run with limits on work and memory.

A chat template is a program from a file that anybody may have written. It runs in jinja2's immutable sandbox, sees
messages, special tokens and the date only, and has a budget: each round of a loop, each call and each character that it
makes or says takes some of it. What would make a long text at once (``"x" * 10**9``, ``"%999999999d"``) is paid for
before it is made. So a template that would run for ever, or fill the memory, ends with an error in seconds.

What it reads is found once (template_probe.py), and messages are passed in that form (template_messages.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from jinja2 import TemplateError, meta

from .._arguments import text
from .._whole import Whole
from ..errors import ArgumentError
from . import template_prices as prices
from .template_check import left_out
from .template_environment import environment
from .template_messages import fitted, normalised, variables_of
from .template_probe import Reads, Render, Values, View, probe

BUDGET = 1 << 26  # characters, beside what the messages bring
_OF_A_PROBE = 16  # a probe has that part of it


class ChatTemplate(Whole):
    """One compiled template. Read-only and safe to share between threads.

    ``source``: its text; ``names``: the variables that it asks for. Raises ``kv.errors.ArgumentError`` when it is no
    template.
    """

    def __init__(self, source: str) -> None:
        made = environment()
        text(source, "tokenizer", "chat template")
        if len(source) > prices.LONGEST:
            raise ArgumentError(f"[tokenizer] chat template: got {len(source)} characters, allowed {prices.LONGEST}")
        self.source = source
        try:
            self.names: frozenset[str] = frozenset(meta.find_undeclared_variables(made.parse(source)))
            self._template = made.from_string(source)
        except (TemplateError, RecursionError, SyntaxError) as error:  # Python's, for a `break` outside a loop
            raise ArgumentError(f"[tokenizer] chat template: got one that cannot be compiled: {error}") from error

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[str]]:
        return ChatTemplate, (self.source,)

    @cached_property
    def reads(self) -> Reads:
        """The parts of messages and variables that it reads, found by rendering some twenty small conversations."""
        return probe(self._tried(), self.names)

    def wants(self) -> Reads:
        """The same; ``wants().sentences()`` says it in words."""
        return self.reads

    def prepared(self, messages: Sequence[object]) -> list[Values]:
        """Messages as the template reads them: a copy in plain values. Raises ``kv.errors.ArgumentError`` or
        ``kv.errors.ArgumentTypeError`` naming what cannot be passed."""
        return fitted(normalised(messages), self.reads)

    def variables(self, given: Mapping[str, object]) -> Values:
        """Variables of a call as the template gets them, ``tools`` and ``documents`` among them."""
        return variables_of(given, self.names)

    def render(self, values: Mapping[str, object]) -> str:
        """The text. Raises ``kv.errors.ArgumentError`` when the template refuses the values, fails, or takes too much
        work. ``MemoryError`` passes through."""
        try:
            return self._rendered(values, BUDGET)
        except prices.TooMuchWork as error:
            raise ArgumentError(f"[tokenizer] chat template: {error}") from error
        except (ArgumentError, MemoryError):
            raise
        except Exception as error:
            text = str(error) or type(error).__name__
            raise ArgumentError(f"[tokenizer] the chat template refused the messages: {text}") from error

    def left_out(self, values: View, prompt: str) -> set[str]:
        """Parts of the messages that it took no notice of (template_check.py). ``prompt``: from ``render``."""
        return left_out(self.render, values, prompt, self.reads)

    def _rendered(self, values: Mapping[str, object], whole: int) -> str:
        try:
            budget = prices.Budget(whole + prices.FOR_EACH * prices.characters(values))
        except RecursionError as error:
            raise ArgumentError("[tokenizer] messages: got some that contain themselves, allowed trees") from error
        token = prices.current.set(budget)
        try:
            return str(self._template.render(values))
        finally:
            prices.current.reset(token)

    def _tried(self) -> Render:
        """Renders for a probe: None where the template refuses, and always once it took too much work."""
        ended = False

        def render(values: Mapping[str, object]) -> str | None:
            nonlocal ended
            try:
                return None if ended else self._rendered(values, BUDGET // _OF_A_PROBE)
            except prices.TooMuchWork:
                ended = True
            except MemoryError:  # says nothing of the template, and what a probe finds is kept
                raise
            except Exception:
                pass
            return None

        return render

"""Whether, how hard and for how long a model is to think: what is asked for, in the words of its chat template.

Concept. Each API has words of its own for it (``reasoning_effort``, ``reasoning.effort``, ``thinking``, ``think``), and
so has each template, as variables that it reads:

    enable_thinking, thinking     whether
    reasoning_effort              how hard, in a word
    thinking_budget               for how many tokens

``ThinkingAsked`` is what was asked for, ``thinking_of`` what becomes of it: variables, and the tokens after which the
reasoning is closed (limit.py). The latter needs delimiters only, so a budget holds with every template that has these,
and a model that always thinks is kept from it by a budget of 0. A model whose template has neither variables nor
delimiters never thinks. It keeps every limit, and cannot be made to think.

Units: tokens. Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ArgumentError
from .reasoning import delimiters_of

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer

Variables = dict[str, object]  # of a chat template

SWITCHES = ("enable_thinking", "thinking")
_VARIABLES = (*SWITCHES, "reasoning_effort", "thinking_budget")
_DEFAULT_EFFORT = "high"  # where an effort is a limit: what stands for no effort at all in Anthropic's API


class NoSuchThinking(ArgumentError):
    """``param``: the field that asked for it."""

    def __init__(self, param: str, allowed: str) -> None:
        super().__init__(f"{param}: this model's chat template has no such setting, allowed {allowed}")
        self.param = param


@dataclass(frozen=True)
class ThinkingAsked:
    """``effort``: "none", "low", ...; ``budget``: tokens of reasoning. None: nothing was said. The fields of the
    request that asked for each: ``on_field``, ``effort_field``, ``budget_field``. ``limits``: it says how much at most,
    so that a model that never thinks has fulfilled it."""

    on: bool | None = None
    effort: str | None = None
    budget: int | None = None
    limits: bool = False
    on_field: str = "thinking.type"
    effort_field: str = "reasoning_effort"
    budget_field: str = "thinking.budget_tokens"

    @property
    def wanted(self) -> bool | None:
        """Whether it is to think, by either of them."""
        return self.on if self.on is not None or self.effort is None else self.effort != "none"


class Thinking(NamedTuple):
    """``variables``: of the template. ``most``: tokens of reasoning; None: as many as it likes. ``never``: thinking was
    asked for, and this model has none."""

    variables: Variables
    most: int | None = None
    never: bool = False


def thinking_of(
    tokenizer: Tokenizer, asked: ThinkingAsked, tools: object, given: Mapping[str, object] | None = None
) -> Thinking:
    """``given``: variables that the request has for the template; where it reads none of those that concern thinking,
    they are obeyed in the same way.

    Raises ``NoSuchThinking`` that names the field where the model cannot be told.
    """
    if asked == ThinkingAsked() and not given:
        return Thinking({})
    template = tokenizer.template(tools=tools or None)
    model = _Model(template.names, delimiters_of(template.source) is not None)
    asked = _with_unread(asked, given or {}, template.names)
    variables = {**model.switched(asked), **model.effort(asked), **model.budget(asked), **(given or {})}
    return Thinking(variables, model.most(asked), model.never and bool(asked.wanted))


class _Model:
    """``names``: variables that its template reads; ``marked``: there are delimiters around its reasoning."""

    def __init__(self, names: frozenset[str], marked: bool) -> None:
        self._names, self._marked = names, marked
        self._switches = [name for name in SWITCHES if name in names]

    @property
    def never(self) -> bool:
        """It does not think."""
        return not self._marked and self._names.isdisjoint(_VARIABLES)

    def switched(self, asked: ThinkingAsked) -> Variables:
        """Variables that turn it on or off."""
        if asked.wanted and self.never and not asked.limits:
            raise NoSuchThinking(asked.effort_field if asked.on is None else asked.on_field, "none")
        return {} if asked.wanted is None else dict.fromkeys(self._switches, asked.wanted)

    def effort(self, asked: ThinkingAsked) -> Variables:
        """The variable that says how hard; a switch that is on stands for all degrees."""
        effort = "none" if asked.effort is None and asked.on is False and not self._switches else asked.effort
        if effort is None:
            return {}
        if "reasoning_effort" in self._names:
            return {} if effort == "none" and self._switches else {"reasoning_effort": effort}
        settled = effort == "none" or bool(self._switches) or self.never
        if not settled and not (asked.limits and effort == _DEFAULT_EFFORT):
            raise NoSuchThinking(asked.effort_field, "none" if not asked.limits else _DEFAULT_EFFORT)
        return {}

    def budget(self, asked: ThinkingAsked) -> Variables:
        """The variable that says for how long."""
        if asked.budget is None or asked.wanted is False or self.never:
            return {}
        if "thinking_budget" in self._names:
            return {"thinking_budget": asked.budget}
        if not self._marked:
            raise NoSuchThinking(asked.budget_field, "none: nothing marks where its reasoning ends")
        return {}

    def most(self, asked: ThinkingAsked) -> int | None:
        """Tokens after which its reasoning is closed; 0 where it can be kept from it by nothing else."""
        if not self._marked:
            return None
        if asked.wanted is False:
            return None if self._switches else 0
        return asked.budget


def _with_unread(asked: ThinkingAsked, given: Mapping[str, object], names: frozenset[str]) -> ThinkingAsked:
    """Clients that know no template give what several read: one that is read is enough."""
    if not names.isdisjoint(given.keys() & set(_VARIABLES)):
        return asked
    for name in SWITCHES:
        if isinstance(given.get(name), bool):
            asked = replace(asked, on=bool(given[name]), on_field=f"chat_template_kwargs.{name}")
    effort, budget = given.get("reasoning_effort"), given.get("thinking_budget")
    if isinstance(effort, str):
        asked = replace(asked, effort=effort, effort_field="chat_template_kwargs.reasoning_effort")
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
        asked = replace(asked, budget=budget, budget_field="chat_template_kwargs.thinking_budget")
    return asked

"""A checkpoint's chat template, run with limits on work and memory.

A chat template is a program from a file that anybody may have written. It runs in jinja2's immutable sandbox, sees
messages, special tokens and the date only, and has a budget: each round of a loop, each call and each character that it
makes or says takes some of it. What would make a long text at once (``"x" * 10**9``, ``"%999999999d"``) is paid for
before it is made. So a template that would run for ever, or fill the memory, ends with an error in seconds.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from .._arguments import text
from ..errors import ArgumentError
from . import template_prices as prices

BUDGET = 1 << 26  # characters, beside what the messages bring


# ---- the environment -------------------------------------------------------------------------------------------------


class _GenerationBlock(Extension):
    """{% generation %} marks the model's own words for training; here it is its contents."""

    tags: set[str] = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """jinja2's, without its contents in its text."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Prices(NodeTransformer):
    """Puts a price on rounds of loops, macros, what is said and what is put together."""

    @staticmethod
    def _filtered(node: nodes.Expr, name: str) -> nodes.Expr:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    def _with_round(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        price = self._filtered(nodes.Const(prices.ROUND, lineno=node.lineno), "kvtrie_spend")
        node.body.insert(0, nodes.ExprStmt(price, lineno=node.lineno))
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self._with_round(node)
        if node.test is not None:
            node.test = self._filtered(cast(nodes.Expr, node.test), "kvtrie_tested")
        return node

    visit_Macro = visit_CallBlock = _with_round  # noqa: N815

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [
            each if isinstance(each, nodes.TemplateData) else self._filtered(each, "kvtrie_said") for each in node.nodes
        ]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = self._filtered(node.expr, "kvtrie_read")
        for operand in node.ops:
            operand.expr = self._filtered(operand.expr, "kvtrie_read")
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.name not in ("defined", "undefined"):  # which look at the name itself
            node.node = self._filtered(node.node, "kvtrie_read")
        return node

    def _visit_literal(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else self._filtered(node, "kvtrie_made")

    visit_List = visit_Tuple = visit_Dict = _visit_literal  # noqa: N815

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = self._filtered(node.key, "kvtrie_written")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            node.arg = self._filtered(node.arg, "kvtrie_written")
        return self._filtered(node, "kvtrie_said") if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._filtered(nodes.List(node.nodes, lineno=node.lineno), "kvtrie_joined")


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed: nodes.Template = _Prices().visit(super()._parse(source, name, filename))
        return parsed

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        prices.pay_for_binop(operator, left, right)
        return prices.paid(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def priced(*arguments: object, **named: object) -> str:
            for each in (*arguments, *named.values()):
                prices.written(each)
            values = arguments[0].values() if arguments and isinstance(arguments[0], dict) else arguments
            prices.pay_for_widths(str(getattr(value, "__self__", "")), [*values, *named.values()])
            return str(wrapped(*arguments, **named))

        return priced

    def call(__self, __context: Context, __obj: object, *arguments: object, **named: object) -> object:  # noqa: N805
        prices.spend(prices.ROUND)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        for each in arguments:
            prices.made(each)
        if isinstance(owner, (str, bytes)):
            prices.read(owner)
            if name == "join" and arguments:
                items = list(cast("Iterable[object]", arguments[0]))
                prices.pay_for_join(owner, items)
                arguments = (items,)
            elif name in prices.METHODS:
                prices.METHODS[name](owner, *arguments, *named.values())
        elif isinstance(owner, int) and name == "to_bytes":
            prices.pay_for_numbers(*arguments, *named.values())
        return prices.paid(super().call(__context, __obj, *arguments, **named))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(layout: str) -> str:
    prices.pay_for_widths(layout, ())
    return datetime.datetime.now().strftime(layout)


def _tested(value: object) -> object:
    prices.spend(prices.ROUND)
    return value


def _joined(values: list[object]) -> str:
    for each in values:
        prices.written(each)
    texts = [str(value) for value in values]
    prices.spend(sum(map(len, texts)))
    return "".join(texts)


def _environment() -> _Environment:
    """What Hugging Face's templates are written for."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # nothing is worked out while it is compiled
        extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    environment.filters = {name: prices.with_price(name, function) for name, function in environment.filters.items()}
    environment.tests = {
        name: prices.with_test_price(cast(prices.Test, function)) for name, function in environment.tests.items()
    }
    environment.globals["namespace"] = _Namespace
    environment.filters.update(
        kvtrie_made=prices.made,
        kvtrie_written=prices.written,
        kvtrie_spend=prices.spend,
        kvtrie_tested=_tested,
        kvtrie_said=prices.paid,
        kvtrie_joined=_joined,
        kvtrie_read=prices.read,
    )
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """One compiled template. Read-only and safe to share between threads.

    ``names`` are the variables that it asks for. Raises ``kv.ArgumentError`` when it is no template.
    """

    def __init__(self, source: str) -> None:
        environment = _environment()
        text(source, "tokenizer", "chat template")
        if len(source) > prices.LONGEST:
            raise ArgumentError(f"[tokenizer] chat template: got {len(source)} characters, allowed {prices.LONGEST}")
        try:
            self.names: frozenset[str] = frozenset(meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
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

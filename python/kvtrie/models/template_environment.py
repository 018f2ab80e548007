"""The language of chat templates: jinja2's as Hugging Face transformers sets it up, with a price on all work.

What a template may call is what it may call there: ``tojson`` that writes letters as they are, ``raise_exception``,
``strftime_now``, loops that break, ``{% generation %}``, a ``dict`` and a ``namespace`` that lead nowhere else. Three
things differ, as their texts have no bound or no meaning: a namespace does not say what is in it, there is no
``lipsum``, and what would be written as an address in memory, as a generator is, is refused. Prices are those of
template_prices.py; they change nothing of what a template says.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import soft_str

from . import template_prices as prices

_WRITTEN = 16  # times of one prompt that are told
_PLAIN = (str, int, float, list, tuple, dict, type(None), Undefined)


class _GenerationBlock(Extension):
    """{% generation %} marks the model's own words for training; here it is its contents, called as a macro is: what is
    set within it is not known behind it, and no loop around it is left."""

    tags: set[str] = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("said"), [], [], body).set_lineno(line)

    def said(self, caller: Macro) -> str:
        return str(caller())


class _Namespace(Namespace):
    """jinja2's, without its contents in its text, and without names that begin with an underscore."""

    def __init__(*arguments: Any, **named: object) -> None:  # `namespace(self=...)` is allowed
        self, *rest = arguments
        values = dict(*rest, **named)
        for name in values:
            _require_public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: object) -> None:
        _require_public(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _require_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"namespace: got the name {name[:40]!r}, allowed none that begins with an underscore")


class _Dict:
    """The ``dict`` of a template: it makes one, and is no way to the class."""

    def __call__(self, *arguments: Any, **named: object) -> dict[object, object]:
        return dict(*arguments, **named)

    def fromkeys(self, keys: Iterable[object], value: object = None, /) -> dict[object, object]:
        return dict.fromkeys(keys, value)

    def __repr__(self) -> str:
        return "<dict>"


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
                arguments = (items, *arguments[1:])
            elif name in prices.METHODS:
                prices.METHODS[name](owner, *arguments, *named.values())
        elif isinstance(owner, int) and name == "to_bytes":
            prices.pay_for_numbers(*arguments, *named.values())
        return prices.paid(super().call(__context, __obj, *arguments, **named))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """In the order in which templates give them."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_clock: ContextVar[tuple[datetime.datetime, list[str]] | None] = ContextVar("clock", default=None)


@contextlib.contextmanager
def clock_at(when: datetime.datetime) -> Iterator[list[str]]:
    """Templates that this thread renders meanwhile have this time; gives the times that were written, as they were."""
    written: list[str] = []
    token = _clock.set((when, written))
    try:
        yield written
    finally:
        _clock.reset(token)


def _strftime_now(layout: str) -> str:
    prices.pay_for_widths(layout, ())
    held = _clock.get()
    if held is None:
        return datetime.datetime.now().strftime(layout)
    when, written = held
    text = when.strftime(layout)
    if text not in written and len(written) < _WRITTEN:
        written.append(text)
    return text


def _string(value: object) -> str:
    return soft_str(_said(value))


def _tested(value: object) -> object:
    prices.spend(prices.ROUND)
    return value


def _said(value: object) -> object:
    """The value that is to be written as text. Raises for an object whose text is where it lies in memory, as that of a
    generator is: such a prompt is another one each time."""
    if not isinstance(value, _PLAIN) and " at 0x" in str(value):
        raise TemplateError(f"got a {type(value).__name__} to write, allowed what has a text of its own")
    return prices.paid(value)


def _joined(values: list[object]) -> str:
    for each in values:
        prices.written(_said(each))
    texts = [str(value) for value in values]
    prices.spend(sum(map(len, texts)))
    return "".join(texts)


def environment() -> ImmutableSandboxedEnvironment:
    """A new one, for one template."""
    made = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # nothing is worked out while it is compiled
        extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
    )
    made.filters["tojson"] = _to_json
    made.filters["string"] = _string
    made.filters = {name: prices.with_price(name, function) for name, function in made.filters.items()}
    made.tests = {name: prices.with_test_price(cast(prices.Test, function)) for name, function in made.tests.items()}
    made.globals["namespace"] = _Namespace
    made.globals["dict"] = _Dict()
    made.filters.update(
        kvtrie_made=prices.made,
        kvtrie_written=prices.written,
        kvtrie_spend=prices.spend,
        kvtrie_tested=_tested,
        kvtrie_said=_said,
        kvtrie_joined=_joined,
        kvtrie_read=prices.read,
    )
    del made.globals["lipsum"]
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made

"""A checkpoint's chat template, run with limits on work and memory.

A chat template is a program from a file that anybody may have written. It runs in jinja2's immutable sandbox, sees
messages, special tokens and the date only, and has a budget: each round of a loop, each call and each character that it
makes or says takes some of it. What would make a long text at once (``"x" * 10**9``, ``"%999999999d"``) is paid for
before it is made. So a template that would run for ever, or fill the memory, ends with an error in seconds.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from contextvars import ContextVar
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

BUDGET = 1 << 26  # characters, beside what the messages bring
FOR_EACH = 64  # characters for each one of the messages
ROUND = 64  # characters that a call or a round of a loop counts for
ITEM = 8  # characters that an item of a list counts for
LONGEST = 1 << 17  # characters of a template: compiling takes up to 40 microseconds for each
_MOST_DIGITS = 400  # that a number is rounded to
_MOST_BITS = 1 << 14  # of a number
_HOLDERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)
_NUMBER = re.compile(r"\d{7,}")  # a width in a format string that is none


Test = Callable[..., object]


class TooMuchWork(TemplateError):
    """The template's budget is spent."""


class _Budget:
    def __init__(self, whole: int) -> None:
        self.whole = self.left = whole
        self.heaviest = whole // 8  # of one value
        self.weights: dict[int, tuple[object, int]] = {}  # by id, of what is kept so that the id stays its own

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise TooMuchWork(
                f"got more than {self.whole} characters, allowed these; a call or a round of a loop counts for {ROUND}"
            )


_budget: ContextVar[_Budget] = ContextVar("chat template")


def _spend(amount: int) -> None:
    _budget.get().spend(max(amount, 0))


def _size(value: object) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict, set, frozenset, range)) else 1


def _weight(value: object) -> int:
    """What writing or comparing a value takes: one that is there twice counts twice. So ``[x, x]`` sixty times over is
    2^60, of which there is little in memory. Known by identity, as no template can change a list."""
    if isinstance(value, (str, bytes)):
        return 1 + len(value)
    if not isinstance(value, _HOLDERS):
        return 1
    budget = _budget.get()
    if id(value) in budget.weights:
        return budget.weights[id(value)][1]
    items = itertools.chain(value.keys(), value.values()) if isinstance(value, dict) else value
    weight = 1 + sum(map(_weight, items))
    if weight > ROUND:
        budget.weights[id(value)] = (value, weight)
    if weight > budget.heaviest:
        raise TooMuchWork(f"got a value of {weight} characters and items, allowed {budget.heaviest}")
    return weight


def _made(value: object) -> object:
    """A list, tuple or dict that the template wrote down."""
    _weight(value)
    return value


def _written(value: object) -> object:
    """What is about to be made into text, or a key."""
    if isinstance(value, _HOLDERS):
        _spend(_weight(value))
    return value


def _paid(value: object) -> object:
    """What was made, paid for by its size in memory; what is made when it is asked for, then."""
    if isinstance(value, Iterator):
        return _paid_when_taken(value)
    _spend(_size(value) * (1 if isinstance(value, (str, bytes, range)) else ITEM))
    return _made(value)


def _paid_when_taken(values: Iterator[object]) -> Iterator[object]:
    for value in values:
        _spend(ROUND // 8)
        yield value


def _read(value: object) -> object:
    """What is searched or compared, which is quicker than making it."""
    _spend(_size(value) // 16 if isinstance(value, (str, bytes)) else _weight(value))
    return value


def _characters(value: object) -> int:
    """Of all texts in the messages and variables."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(each) for key, each in value.items())
    if isinstance(value, Sequence):
        return sum(map(_characters, value))
    return 1


# ---- what makes long texts out of short ones -------------------------------------------------------------------------


def _pay_for_widths(layout: str, arguments: Iterable[object]) -> None:
    """Of a format string: widths stand in it, or are arguments."""
    _spend(sum(int(number) for number in _NUMBER.findall(layout)))
    if "*" in layout or "{" in layout:
        _spend(sum(each for each in arguments if isinstance(each, int)))


def _pay_for_join(separator: object, items: Sequence[object]) -> None:
    _spend(sum(map(_size, items)) + _size(separator) * len(items))


def _pay_for_replace(text: object, old: object = "", new: object = "", *_: object) -> None:
    _spend(len(str(text)) + str(text).count(str(old)) * _size(new))


def _pay_for_numbers(*arguments: object) -> None:
    _spend(sum(each for each in arguments if isinstance(each, int)))


def _pay_for_lines(text: object, *arguments: object) -> None:
    widths = [each if isinstance(each, int) else _size(each) for each in arguments]
    _spend((str(text).count("\n") + 1) * sum(map(abs, widths)))


def _pay_for_wraps(text: object, *arguments: object) -> None:
    _spend((_size(text) + 1) * sum(_size(each) for each in arguments if isinstance(each, str)))


def _refuse_texts(_: object, *arguments: object) -> None:
    if any(not isinstance(each, (int, float)) and each is not None for each in arguments[1:]):
        raise TemplateError("sum: got a start that is no number")


def _refuse_digits(_: object, precision: object = 0, *__: object) -> None:
    if not isinstance(precision, int) or abs(precision) > _MOST_DIGITS:
        raise TemplateError(f"round: got a precision that is no integer from -{_MOST_DIGITS} to {_MOST_DIGITS}")


_FILTERS: dict[str, Callable[..., None]] = {
    "round": _refuse_digits,
    "batch": lambda _, *arguments: _pay_for_numbers(*arguments),
    "center": lambda _, *arguments: _pay_for_numbers(*arguments),
    "format": lambda layout, *arguments: _pay_for_widths(str(layout), arguments),
    "indent": _pay_for_lines,
    "replace": _pay_for_replace,
    "slice": lambda _, *arguments: _pay_for_numbers(*arguments),
    "sum": _refuse_texts,
    "tojson": lambda value, *arguments: _spend(
        _characters(value) * (1 + sum(a for a in arguments if isinstance(a, int)))
    ),
    "wordwrap": _pay_for_wraps,
}
# Filters that hand items on and look at none. All others may write, compare or hash what they are given.
_SHALLOW = {"attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random"}
_SHALLOW |= {"reject", "rejectattr", "reverse", "select", "selectattr", "slice"}
_METHODS: dict[str, Callable[..., None]] = {
    "center": lambda _, *arguments: _pay_for_numbers(*arguments),
    "expandtabs": lambda text, width=8: _spend(_size(text) * abs(width)),
    "ljust": lambda _, *arguments: _pay_for_numbers(*arguments),
    "replace": _pay_for_replace,
    "rjust": lambda _, *arguments: _pay_for_numbers(*arguments),
    "translate": lambda text, table: _spend(_size(text) * (1 + max(map(_size, table.values()), default=0))),
    "zfill": lambda _, *arguments: _pay_for_numbers(*arguments),
}


def _pay_for_binop(operator: str, left: object, right: object) -> None:
    if operator == "%":
        _written(right)
    if operator == "%" and isinstance(left, (str, bytes)):
        arguments = (
            right if isinstance(right, tuple) else tuple(right.values()) if isinstance(right, dict) else (right,)
        )
        _pay_for_widths(str(left), arguments)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MOST_BITS:
            raise TemplateError(f"got a number of {bits} bits, allowed {_MOST_BITS}")
    elif operator == "*":
        count, value = (left, right) if isinstance(left, int) else (right, left)
        if isinstance(count, int):
            _spend(_size(value) * max(count, 0))


def _with_price(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """A filter that is paid for: first what it is known to make, then what it made."""
    skipped = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0
    price = _FILTERS.get(name)

    @functools.wraps(function)
    def priced(*arguments: object, **named: object) -> object:
        value = arguments[skipped]
        _spend(ROUND + _size(value) * (1 if isinstance(value, (str, bytes)) else 16))
        if name not in _SHALLOW:
            for each in (*arguments[skipped:], *named.values()):
                _written(each)
        if name == "join":
            items = list(cast("Iterable[object]", value))
            _pay_for_join([*arguments[skipped + 1 :], named.get("d", "")][0], items)
            arguments = (*arguments[:skipped], items, *arguments[skipped + 1 :])
        elif price is not None:
            price(*arguments[skipped:], *named.values())
        return _paid(function(*arguments, **named))

    return priced


def _with_test_price(function: Test) -> Test:
    """A test, which may compare or search what it is given."""

    @functools.wraps(function)
    def priced(*arguments: object) -> object:
        for each in arguments:
            _read(each)
        return function(*arguments)

    return priced


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
        price = self._filtered(nodes.Const(ROUND, lineno=node.lineno), "kvtrie_spend")
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
        _pay_for_binop(operator, left, right)
        return _paid(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def priced(*arguments: object, **named: object) -> str:
            for each in (*arguments, *named.values()):
                _written(each)
            values = arguments[0].values() if arguments and isinstance(arguments[0], dict) else arguments
            _pay_for_widths(str(getattr(value, "__self__", "")), [*values, *named.values()])
            return str(wrapped(*arguments, **named))

        return priced

    def call(__self, __context: Context, __obj: object, *arguments: object, **named: object) -> object:  # noqa: N805
        _spend(ROUND)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        for each in arguments:
            _made(each)
        if isinstance(owner, (str, bytes)):
            _read(owner)
            if name == "join" and arguments:
                items = list(cast("Iterable[object]", arguments[0]))
                _pay_for_join(owner, items)
                arguments = (items,)
            elif name in _METHODS:
                _METHODS[name](owner, *arguments, *named.values())
        elif isinstance(owner, int) and name == "to_bytes":
            _pay_for_numbers(*arguments, *named.values())
        return _paid(super().call(__context, __obj, *arguments, **named))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(layout: str) -> str:
    _pay_for_widths(layout, ())
    return datetime.datetime.now().strftime(layout)


def _tested(value: object) -> object:
    _spend(ROUND)
    return value


def _joined(values: list[object]) -> str:
    for each in values:
        _written(each)
    texts = [str(value) for value in values]
    _spend(sum(map(len, texts)))
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
    environment.filters = {name: _with_price(name, function) for name, function in environment.filters.items()}
    environment.tests = {name: _with_test_price(cast(Test, function)) for name, function in environment.tests.items()}
    environment.globals["namespace"] = _Namespace
    environment.filters.update(
        kvtrie_made=_made,
        kvtrie_written=_written,
        kvtrie_spend=_spend,
        kvtrie_tested=_tested,
        kvtrie_said=_paid,
        kvtrie_joined=_joined,
        kvtrie_read=_read,
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
        if len(source) > LONGEST:
            raise ArgumentError(f"[tokenizer] chat template: got {len(source)} characters, allowed {LONGEST}")
        try:
            self.names = frozenset(meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise ArgumentError(f"[tokenizer] chat template: got one that cannot be compiled: {error}") from error

    def render(self, values: Mapping[str, object]) -> str:
        """The text. Raises ``kv.ArgumentError`` when the template refuses the values, fails, or takes too much work."""
        try:
            budget = _Budget(BUDGET + FOR_EACH * _characters(values))
        except RecursionError as error:
            raise ArgumentError("[tokenizer] messages: got some that contain themselves, allowed trees") from error
        token = _budget.set(budget)
        try:
            return str(self._template.render(values))
        except TooMuchWork as error:
            raise ArgumentError(f"[tokenizer] chat template: {error}") from error
        except Exception as error:
            text = str(error) or type(error).__name__
            raise ArgumentError(f"[tokenizer] the chat template refused the messages: {text}") from error
        finally:
            _budget.reset(token)

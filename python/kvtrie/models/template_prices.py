"""The price of a chat template's work, and the budget that pays for it (chat_template.py).

Prices are in characters. Each value knows what writing it would take before anything does: a list that holds itself
twice, sixty times over, is small in memory, and its text has no end.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from contextvars import ContextVar
from typing import cast

from jinja2 import TemplateError

FOR_EACH = 64  # characters for each one of the messages
ROUND = 64  # characters that a call or a round of a loop counts for
ITEM = 8  # characters that an item of a list counts for
LONGEST = 1 << 17  # characters of a template: compiling takes up to 40 microseconds for each
_MOST_DIGITS = 400  # that a number is rounded to
_MOST_BITS = 1 << 14  # of a number
_DEEPEST = 1000  # lists in lists: json has no room for more
_HOLDERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)
_NUMBER = re.compile(r"\d{7,}")  # a width in a format string that is none


Test = Callable[..., object]


class TooMuchWork(TemplateError):
    """The template's budget is spent."""


class Budget:
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


current: ContextVar[Budget] = ContextVar("chat template")


def spend(amount: int) -> None:
    current.get().spend(max(amount, 0))


def _size(value: object) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict, set, frozenset, range)) else 1


def _weight(value: object) -> int:
    """The price of writing or comparing a value: one that is there twice costs twice. So ``[x, x]`` sixty times over
    is 2^60, of which there is little in memory. Known by identity, as no template can change a list."""
    if isinstance(value, (str, bytes)):
        return 1 + len(value)
    if not isinstance(value, _HOLDERS):
        return 1
    budget = current.get()
    if id(value) in budget.weights:
        return budget.weights[id(value)][1]
    items = itertools.chain(value.keys(), value.values()) if isinstance(value, dict) else value
    weight = 1 + sum(map(_weight, items))
    if weight > ROUND:
        budget.weights[id(value)] = (value, weight)
    if weight > budget.heaviest:
        raise TooMuchWork(f"got a value of {weight} characters and items, allowed {budget.heaviest}")
    return weight


def made(value: object) -> object:
    """A list, tuple or dict that the template wrote down."""
    _weight(value)
    return value


def written(value: object) -> object:
    """Pays for a value that is about to be made into text, or a key."""
    if isinstance(value, _HOLDERS):
        spend(_weight(value))
    return value


def paid(value: object) -> object:
    """Pays for a value by its size in memory; one that is made when it is asked for, then."""
    if isinstance(value, Iterator):
        return _paid_when_taken(value)
    spend(_size(value) * (1 if isinstance(value, (str, bytes, range)) else ITEM))
    return made(value)


def _paid_when_taken(values: Iterator[object]) -> Iterator[object]:
    for value in values:
        spend(ROUND // 8)
        yield value


def read(value: object) -> object:
    """Pays for searching or comparing, which is quicker than making."""
    spend(_size(value) // 16 if isinstance(value, (str, bytes)) else _weight(value))
    return value


def characters(value: object) -> int:
    """Of all texts in the messages and variables."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(characters(key) + characters(each) for key, each in value.items())
    if isinstance(value, Sequence):
        return sum(map(characters, value))
    return 1


# ---- what makes long texts out of short ones -------------------------------------------------------------------------


def pay_for_widths(layout: str, arguments: Iterable[object]) -> None:
    """Of a format string: widths stand in it, or are arguments."""
    spend(sum(int(number) for number in _NUMBER.findall(layout)))
    if "*" in layout or "{" in layout:
        spend(sum(each for each in arguments if isinstance(each, int)))


def pay_for_join(separator: object, items: Sequence[object]) -> None:
    spend(sum(map(_size, items)) + _size(separator) * len(items))


def _pay_for_replace(text: object, old: object = "", new: object = "", *_: object, **named: object) -> None:
    old, new = named.get("old", old), named.get("new", new)
    spend(len(str(text)) + str(text).count(str(old)) * _size(new))


def pay_for_numbers(*arguments: object) -> None:
    spend(sum(each for each in arguments if isinstance(each, int)))


def _pay_for_count(_: object, *arguments: object, **named: object) -> None:
    pay_for_numbers(*arguments, *named.values())


def _pay_for_layout(layout: object, *arguments: object, **named: object) -> None:
    pay_for_widths(str(layout), [*arguments, *named.values()])


def _widths(arguments: Iterable[object]) -> int:
    return sum(abs(each) if isinstance(each, int) else _size(each) for each in arguments)


def _pay_for_lines(text: object, *arguments: object, **named: object) -> None:
    spend((str(text).count("\n") + 1) * _widths([*arguments, *named.values()]))


def _pay_for_wraps(text: object, *arguments: object, **named: object) -> None:
    spend((_size(text) + 1) * sum(_size(each) for each in [*arguments, *named.values()] if isinstance(each, str)))


def _depth(value: object, known: int = 0) -> int:
    if not isinstance(value, _HOLDERS) or known > _DEEPEST:
        return known
    items = value.values() if isinstance(value, dict) else value
    return max((_depth(each, known + 1) for each in items), default=known + 1)


def _pay_for_json(
    value: object,
    ensure_ascii: object = False,
    indent: object = None,
    separators: object = None,
    *_: object,
    **__: object,
) -> None:
    """Each item is followed by a separator and, if it has a line of its own, indented by its depth."""
    width = _widths([indent]) * (1 + _depth(value)) if isinstance(indent, (int, str)) else 0
    width += _widths(separators) if isinstance(separators, (list, tuple)) else 0
    spend(_weight(value) * (1 + width) * (6 if ensure_ascii else 1))


def _refuse_texts(_: object, __: object = None, start: object = 0, **___: object) -> None:
    if not isinstance(start, (int, float)) and start is not None:
        raise TemplateError("sum: got a start that is no number")


def _refuse_digits(_: object, precision: object = 0, *__: object, **___: object) -> None:
    if precision is not None and (not isinstance(precision, int) or abs(precision) > _MOST_DIGITS):
        raise TemplateError(f"round: got a precision that is no integer from -{_MOST_DIGITS} to {_MOST_DIGITS}")


_FILTERS: dict[str, Callable[..., None]] = {
    "round": _refuse_digits,
    "batch": _pay_for_count,
    "center": _pay_for_count,
    "format": _pay_for_layout,
    "indent": _pay_for_lines,
    "replace": _pay_for_replace,
    "slice": _pay_for_count,
    "sum": _refuse_texts,
    "tojson": _pay_for_json,
    "wordwrap": _pay_for_wraps,
}
# Filters that hand items on and look at none. All others may write, compare or hash what they are given.
_SHALLOW = {"attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random"}
_SHALLOW |= {"reject", "rejectattr", "reverse", "select", "selectattr", "slice"}


def _longest(table: object) -> int:
    """The longest text that a table puts in the place of a character."""
    items = table.values() if isinstance(table, dict) else table if isinstance(table, (list, tuple)) else ()
    return max(map(_size, items), default=0)


METHODS: dict[str, Callable[..., None]] = {
    "center": lambda _, *arguments: pay_for_numbers(*arguments),
    "expandtabs": lambda text, width=8: spend(_size(text) * abs(width)),
    "ljust": lambda _, *arguments: pay_for_numbers(*arguments),
    "replace": _pay_for_replace,
    "rjust": lambda _, *arguments: pay_for_numbers(*arguments),
    "translate": lambda text, table: spend(_size(text) * (1 + _longest(table))),
    "zfill": lambda _, *arguments: pay_for_numbers(*arguments),
}


def pay_for_binop(operator: str, left: object, right: object) -> None:
    if operator == "%":
        written(right)
    if operator == "%" and isinstance(left, (str, bytes)):
        arguments = (
            right if isinstance(right, tuple) else tuple(right.values()) if isinstance(right, dict) else (right,)
        )
        pay_for_widths(str(left), arguments)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MOST_BITS:
            raise TemplateError(f"got a number of {bits} bits, allowed {_MOST_BITS}")
    elif operator == "*":
        count, value = (left, right) if isinstance(left, int) else (right, left)
        if isinstance(count, int):
            spend(_size(value) * max(count, 0))


def with_price(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """A filter that is paid for: first what it is known to make, then what it made."""
    skipped = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0
    price = _FILTERS.get(name)

    @functools.wraps(function)
    def priced(*arguments: object, **named: object) -> object:
        value = arguments[skipped]
        spend(ROUND + _size(value) * (1 if isinstance(value, (str, bytes)) else 16))
        if name not in _SHALLOW:
            for each in (*arguments[skipped:], *named.values()):
                written(each)
        if name == "join":
            items = list(cast("Iterable[object]", value))
            pay_for_join([*arguments[skipped + 1 :], named.get("d", "")][0], items)
            arguments = (*arguments[:skipped], items, *arguments[skipped + 1 :])
        elif price is not None:
            price(*arguments[skipped:], **named)
        return paid(function(*arguments, **named))

    return priced


def with_test_price(function: Test) -> Test:
    """A test, which may compare or search what it is given."""

    @functools.wraps(function)
    def priced(*arguments: object, **named: object) -> object:
        for each in (*arguments, *named.values()):
            read(each)
        return function(*arguments, **named)

    return priced

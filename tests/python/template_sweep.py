"""Templates of one expression or a few statements, random ones, for a comparison of the language itself: every filter,
test, global and method of a value that a template can name."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Iterator, Sequence
from typing import Any

from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_TESTS

# A name: what its text is has no bound, no meaning, or is the address of an object.
NOT_COMPARED = {"lipsum", "random"}

VALUES: list[Any] = [
    *(
        "",
        "a",
        "Hello World",
        "  x \n y  ",
        "1.5",
        "12",
        "<b>&\"'",
        "\u00e9\u4e2d\u2603",
        "a,b,c",
        "%s-%d",
        "{}",
        "a b c d e f",
    ),
    *(0, 1, -3, 7, 255, 2.5, -0.0, 1e20, True, False, None),
    *([], [1, 2, 3], ["b", "A", "c"], [[1, 2], [3]], [{"k": 1, "n": "x"}, {"k": 2, "n": "Y"}], [None, 0, "z"]),
    *({}, {"b": 1, "a": [2, None]}, {"x": {"y": "\u00e9"}}, (1, "t"), "http://x.y/z?q=1 and more", "word " * 30),
]
_KEYWORDS = {
    "attribute": ("'k'", "'n'", "0"),
    "start": ("0", "2"),
    "precision": ("0", "1", "-1"),
    "method": ("'floor'", "'ceil'", "'common'"),
    "width": ("3", "20"),
    "indent": ("0", "2", "'\\t'"),
    "ensure_ascii": ("true", "false"),
    "separators": ("(',', ':')", "(', ', ' = ')"),
    "sort_keys": ("true", "false"),
    "first": ("true",),
    "blank": ("true",),
    "length": ("3", "9"),
    "end": ("'!'",),
    "killwords": ("true",),
    "leeway": ("0",),
    "case_sensitive": ("true", "false"),
    "reverse": ("true",),
    "by": ("'value'", "'key'"),
    "default_value": ("'d'",),
    "boolean": ("true",),
    "binary": ("true",),
    "linecount": ("2",),
    "fill_with": ("'-'", "0"),
    "wrapstring": ("'|'",),
    "break_long_words": ("false",),
    "old": ("'a'", "' '"),
    "new": ("'_'", "''"),
    "count": ("1",),
    "base": ("16",),
    "default": ("'d'", "0"),
    "d": ("'+'",),
    "num": ("3", "0"),
    "other": ("1", "'a'"),
    "seq": ("[1, 'a']",),
}
_ARGUMENTS = (
    "a",
    "b",
    "1",
    "2",
    "'x'",
    "','",
    "true",
    "none",
    "'k'",
    "[1]",
    "undefined_name",
    "'upper'",
    "'odd'",
    "' '",
)
_JSON = ("ensure_ascii", "indent", "separators", "sort_keys")  # of tojson, which is not jinja2's
_METHODS = sorted(
    {
        name
        for kind in (str, int, float, list, dict, tuple)
        for name in dir(kind)
        if not name.startswith("_") and name not in ("fromhex", "hex", "from_bytes", "maketrans")
    }
)
_OPERATORS = (*("+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"),)

STATEMENTS = [
    (
        "{% for x in a %}{{ loop.index }}:{{ x }}{% if loop.first %}F{% endif %}{% if loop.last %}L"
        "{% endif %};{% else %}E{% endfor %}"
    ),
    (
        "{% for x in a if x %}{{ loop.length }}{{ loop.revindex0 }}{{ loop.cycle('p', 'q') }}{{"
        " loop.changed(x) }}{% endfor %}"
    ),
    "{% for x in a %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in a %}{% if x %}{% continue %}{% endif %}{{ loop.previtem }}|{{ loop.nextitem }}{% endfor %}",
    "{% for k, v in a.items() %}{{ k }}={{ v }} {% endfor %}",
    "{% for k, v in a|dictsort %}{{ k }}={{ v }} {% endfor %}",
    "{% for x in a recursive %}[{{ x if x is not iterable or x is string else loop(x) }}]{% endfor %}",
    (
        "{% set ns = namespace(n=0, t='') %}{% for x in a %}{% set ns.n = ns.n + 1 %}"
        "{% set ns.t = ns.t ~ x %}{% endfor %}{{ ns.n }}{{ ns.t }}"
    ),
    "{% set ns = namespace(_x=1) %}{{ ns.n }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}ok",
    "{% set ns = namespace({'a': a}, b=b) %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    (
        "{% macro m(x, y=2, *z) %}<{{ x }}{{ y }}{{ varargs }}{{ kwargs }}>"
        "{% endmacro %}{{ m(a) }}{{ m(a, b, 3, q=1) }}{{ m() }}"
    ),
    "{% macro m() %}({{ caller('c') }}){% endmacro %}{% call(x) m() %}{{ x }}{{ a }}{% endcall %}",
    "{% filter upper %}x{{ a }}{% endfilter %}{% set s %}  {{ b }} {% endset %}[{{ s }}]{{ s|trim }}",
    "{% set s | trim %} {{ a }} {% endset %}[{{ s }}]",
    "{% set x = 1 %}{% generation %}{{ a }}{% set x = 2 %}{% endgeneration %}{{ x }}",
    "{% for x in a %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{% for x in a %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "  {% if a %}\n  yes\n  {% elif b %}\n  b\n  {% else %}\n  no\n  {% endif %}\n end\n\n",
    "{%- if a -%} y {%- endif -%} {#- c -#} x {{- a -}} y\n",
    "{%+ if a %} y {%+ endif +%}\n z",
    "{% with x = a, y = b %}{{ x }}{{ y }}{% endwith %}{{ x }}",
    "{% raw %}{{ a }}{% endraw %}{{ '{{' }}",
    "{% block t %}{{ a }}{% endblock %}{{ self.t() }}",
    "{{ dict(a=1, b=a) }}{{ dict([['x', b]]) }}{{ dict.fromkeys(['p'], a) }}",
    "{{ dict.mro() }}",
    "{{ range(3)|list }}{{ range(a) | list }}",
    (
        "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}"
        "{% set j = joiner('|') %}{{ j() }}{{ j() }}"
    ),
    "{{ raise_exception(a) }}",
    "{{ strftime_now('x%%y') }}",
    "{{ a.b.c }}",
    "{{ a['b'] }}{{ a.b }}{{ a[0] }}{{ a[-1] }}{{ a[1:] }}{{ a[::-1] }}",
    "{{ undefined_name }}{{ undefined_name is defined }}{{ undefined_name|default('d') }}{{ undefined_name.x }}",
    "{{ undefined_name ~ 'x' }}{{ 'x' in undefined_name }}{{ undefined_name == none }}{{ undefined_name|length }}",
    "{{ undefined_name | tojson }}",
    "{{ undefined_name + 'x' }}",
    "{{ {'u': undefined_name} | tojson }}",
    "{{ a | tojson }}{{ b | tojson(indent=2) }}{{ a|tojson(false, 1, (';', '='), true) }}",
    "{{ {'b': 1, 'a': a} | tojson(sort_keys=true, separators=(',', ':')) }}",
    "{{ [a, b] | tojson(ensure_ascii=true) }}",
    (
        "{{ a is string }}{{ a is mapping }}{{ a is iterable }}{{ a is sequence }}{{ a is number }}{{ a is"
        " none }}{{ a is boolean }}"
    ),
    "{{ a if b }}{{ a if b else 'n' }}{{ (a, b) }}{{ [a, b] }}{{ {a: b} }}",
    "{{ not a }}{{ -b }}{{ a == b == b }}{{ 1 < 2 < 3 }}",
    "{% do a.append(1) %}",
    "{% set _ = a.append(1) %}{{ a }}",
    "{{ a.pop() }}",
    "{{ a.__class__ }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ a|attr('__class__') }}{{ a|attr('k') }}",
    "{{ '%s %s' % (a, b) }}{{ '%s' % a }}{{ '{} {!r} {:>5}'.format(a, b, 'x') }}{{ '{a}'.format_map({'a': a}) }}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% extends 'x' %}",
    "{{ a|no_such_filter }}",
    "{{ a is no_such_test }}",
    "{% if 'tojson' is filter %}{{ a|map('string')|join(',') }}{% endif %}{{ [a, b]|select('string')|list }}",
    "{{ a|selectattr('k', 'equalto', 1)|map(attribute='n')|list }}{{ a|rejectattr('k')|list }}",
    "{{ a|groupby('k')|list }}{{ a|batch(2, '-')|list }}{{ a|slice(2)|list }}",
    "{{ a|e ~ b|e }}{{ (a|e) + '<' }}{{ a|safe }}{{ a|escape|upper }}",
]


def expression(dice: random.Random) -> str:
    """One of a filter, a test, a method or an operator, on ``a`` and ``b``."""
    kind = dice.randrange(4)
    if kind == 0:
        name = dice.choice(sorted({*DEFAULT_FILTERS} - NOT_COMPARED))
        return f"a|{name}{_call(dice, DEFAULT_FILTERS[name], _JSON if name == 'tojson' else ())}"
    if kind == 1:
        name = dice.choice(sorted(DEFAULT_TESTS))
        return f"a is {name}{_call(dice, DEFAULT_TESTS[name])}"
    if kind == 2:
        return f"a.{dice.choice(_METHODS)}{_call(dice, None) or '()'}"
    return f"a {dice.choice(_OPERATORS)} b"


def _call(dice: random.Random, function: object, names: Sequence[str] = ()) -> str:
    """Arguments, mostly such as the function has; of a method, up to two."""
    with contextlib.suppress(ValueError, TypeError):
        found = inspect.signature(function).parameters.values() if callable(function) and not names else ()
        skipped = 2 if getattr(function, "jinja_pass_arg", None) else 1
        names = names or [each.name for each in list(found)[skipped:]]
    count = dice.choice((0, 1, 1, 2)) if function is None else dice.randrange(len(names) + 1)
    if dice.random() < 0.1:
        count += 1
    given = [_argument(dice, names[at] if at < len(names) else "") for at in range(count)]
    given += [f"{name}={_argument(dice, name)}" for name in names[count:] if dice.random() < 0.4]
    return f"({', '.join(given)})" if given else ""


def _argument(dice: random.Random, name: str) -> str:
    return dice.choice(_KEYWORDS[name] if name in _KEYWORDS and dice.random() < 0.7 else _ARGUMENTS)


def random_templates(dice: random.Random, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Templates and the values of their variables."""
    for _ in range(count):
        after = dice.choice(("", "", "", "|list", "|string", "|tojson"))
        source = dice.choice(STATEMENTS) if dice.random() < 0.15 else f"{{{{ ({expression(dice)}){after} }}}}"
        yield source, {"a": dice.choice(VALUES), "b": dice.choice(VALUES)}

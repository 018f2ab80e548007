"""Chat templates run with limits: what would run for ever or fill the memory is refused, what is meant goes through."""

from __future__ import annotations

import datetime
import resource
from typing import Any

import pytest

import kvtrie as kv
from kvtrie.models import chat_template
from kvtrie.models.chat_template import ChatTemplate

DOUBLING = "{%% set n = namespace(x='ab') %%}{%% for i in range(60) %%}%s{%% endfor %%}"
NESTING = "{%% set n = namespace(x={1: 2}) %%}{%% for i in range(60) %%}{%% set n.x = %s %%}{%% endfor %%}"
ENDLESS = {
    "percent width": "{{ '%999999999d' % 1 }}",
    "percent width from an argument": "{{ '%*d' % (10**9, 1) }}",
    "format filter": "{{ '%999999999d'|format(1) }}",
    "format method": "{{ '{:999999999}'.format(1) }}",
    "format width from an argument": "{{ '{:{}}'.format(1, 10**9) }}",
    "repeated text": "{{ 'x' * 10**9 }}",
    "repeated list": "{{ [[1]] * 10**9 }}",
    "power": "{{ 10**(10**8) }}",
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loop over a long list": "{% for i in range(9999) %}{% for x in [0] * 10000 %}{% endfor %}{% endfor %}",
    "loop test": "{% for a in range(99999) if range(99999)|select('none')|list %}{% endfor %}",
    "recursive loop": "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "doubling by ~": DOUBLING % "{% set n.x = n.x ~ n.x %}",
    "doubling by +": DOUBLING % "{% set n.x = n.x + n.x %}",
    "doubling by a block": DOUBLING % "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching macro": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "center": "{{ 'x'|center(10**9) }}",
    "indent": "{{ 'x'|indent(10**9, true) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "tojson": "{{ {'a': [1]}|tojson(indent=10**9) }}",
    "tojson, its second argument": "{{ {'a': [1]}|tojson(false, 10**9) }}",
    "tojson of lists in lists": (
        "{% set n = namespace(x=[1]) %}{% for i in range(300) %}{% set n.x = [n.x] %}{% endfor %}"
        "{{ n.x|tojson(indent=10**4) }}"
    ),
    "tojson with separators": "{{ range(9999)|list|tojson(separators=('x' * 100000, ':')) }}",
    "wordwrap": "{{ ('x' * 1000000)|wordwrap(1, wrapstring='y' * 1000) }}",
    "replace filter": "{{ ('a' * 10000)|replace('a', 'b' * 100000) }}",
    "join filter": "{{ range(99999)|join('x' * 100000) }}",
    "sum of lists": "{{ (['a'] * 100000)|sum(start=[]) }}",
    "center method": "{{ 'x'.center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "rjust": "{{ 'x'.rjust(10**9) }}",
    "zfill": "{{ 'x'.zfill(10**9) }}",
    "expandtabs": "{{ 'a\tb'.expandtabs(10**9) }}",
    "replace method": "{{ ('a' * 10000).replace('a', 'b' * 100000) }}",
    "join method": "{{ ('x' * 100000).join(range(99999)|map('string')) }}",
    "translate": "{{ ('x' * 1000).translate({120: 'y' * 10**6}) }}",
    "sorting again and again": "{% set a = range(99999)|list %}{% for i in a %}{% set b = a|sort %}{% endfor %}",
    "searching again and again": "{% set a = 'x' * 9999999 %}{% for i in range(9999) %}{{ 'y' in a }}{% endfor %}",
    "copying again and again": "{% set a = 'x' * 9999999 %}{% for i in range(9999) %}{% set b = a[1:] %}{% endfor %}",
    "clock": "{{ strftime_now('%' ~ '9' * 9 ~ 'd') }}",
    "filler text": "{{ lipsum(10**6) }}",
    "rounding": "{{ 1|round(-10**9) }}",
    **{
        f"a list of lists of lists, {what}": "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
        "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}" + use
        for what, use in {
            "said": "{{ n.x }}",
            "tojson": "{{ n.x|tojson }}",
            "string": "{{ n.x|string|length }}",
            "compared": "{{ n.x == n.y }}",
            "percent": "{{ '%s' % n.x }}",
            "format": "{{ '{}'.format(n.x) }}",
            "put together": "{{ n.x ~ '' }}",
            "joined": "{{ [n.x]|join }}",
            "searched": "{{ n.x in [n.y] }}",
            "sorted": "{{ [n.x, n.y]|sort }}",
            "tested": "{{ n.x is eq n.y }}",
        }.items()
    },
    "a tuple of tuples as a key": NESTING % "(n.x, n.x)" + "{{ {n.x: 1} }}",
    "a dict of views": NESTING % "{1: n.x.values(), 2: n.x.values()}" + "{{ n.x }}",
    "written again and again": "{% set t = range(9999)|list %}{% for i in range(99999) %}"
    "{% set d = t|string %}{% endfor %}",
    "a long template": "{{ 1 }}" * 20000,
    "many macros": "{% macro a() %}{% endmacro %}" * 5000,
    "deep expression": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


def test_namespaces_in_namespaces_do_not_say_what_is_in_them() -> None:
    source = NESTING % "[namespace(x=n.x), namespace(x=n.x)]" + "{{ n.x }}"
    assert ChatTemplate(source).render({"messages": []}) == "[<Namespace>, <Namespace>]"


def test_the_bytes_of_a_number_are_paid_for_before_they_are_made() -> None:
    for call in ("(10**9, 'big')", "(length=10**9, byteorder='big')"):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(kv.errors.ArgumentError):
            ChatTemplate("{{ (1).to_bytes" + call + " }}").render({"messages": []})
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB; 10**9 bytes are twice that


@pytest.mark.parametrize("source", ENDLESS.values(), ids=list(ENDLESS))
def test_what_would_not_end_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "BUDGET", 1 << 22)  # a sixteenth: the same refusals, sooner
    with pytest.raises(kv.errors.ArgumentError, match=r"^\[tokenizer\] (chat template|the chat template refused)"):
        ChatTemplate(source).render({"messages": []})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 1/0 }}", "division by zero"),
        ("{{ messages.x.y }}", "no attribute"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0]['role'] + 1 }}", "can only concatenate"),
        ("{{ ['a']|map('no_filter')|list }}", "no_filter"),
        ("{% if %}", "cannot be compiled"),
        ("{% break %}", "cannot be compiled"),
    ],
)
def test_what_fails_in_a_template_is_the_librarys_error(source: str, text: str) -> None:
    with pytest.raises(kv.errors.ArgumentError, match=text):
        ChatTemplate(source).render({"messages": [{"role": "user"}]})


def test_messages_that_contain_themselves_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(kv.errors.ArgumentError, match=r"\[tokenizer\] messages: got some that contain themselves"):
        ChatTemplate("{{ messages|length }}").render({"messages": endless})


def test_long_conversations_are_no_hostile_ones() -> None:
    source = (
        "{% for m in messages %}{% set c = m['content']|trim %}{% if 'x' in c and c is string %}"
        "{{ '<|' ~ m['role'] ~ '|>\n' + c.replace('</s>', '') + '\n' }}{% endif %}{% endfor %}"
    )
    content = "xyz " * 50_000
    messages = [{"role": "user", "content": content} for _ in range(100)]
    text = ChatTemplate(source).render({"messages": messages})
    assert text == f"<|user|>\n{content.strip()}\n" * 100  # 20 million characters


def test_prices_change_nothing_of_what_templates_say() -> None:
    source = """{%- set ns = namespace(found=false) -%}
{%- for m in messages if m.role != 'system' -%}
{{- loop.index }}/{{ loop.length }} {{ m.role|upper }}: {{ m.content[:3] ~ '...' }}{{ '%5.1f|%s' % (1.25, 'a') }}
{%- if loop.last %} end{% endif %}{% set ns.found = true %}{{ ',' if not loop.last }}
{%- else -%} none {%- endfor -%}
{%- macro tag(name, n=2) %}<{{ name * n }}>{% endmacro -%}
{{ tag('b') }}{{ tag('c', n=1) }} {{ ['a', 'b']|join('-') }} {{ messages|map(attribute='role')|list|tojson }}
{{ 'x{}y'.format(3) }} {{ 'a,b'.split(',')|last }} {{ ns.found }} {{ 2 ** 10 }} {{ undefined_name is defined }}
{{ strftime_now('%Y') }}{% generation %}!{% endgeneration %}"""
    messages = [{"role": r, "content": c} for r, c in (("system", "be"), ("user", "hello"), ("assistant", "goodbye"))]
    before = datetime.datetime.now().year
    text = ChatTemplate(source).render({"messages": messages})
    after = datetime.datetime.now().year
    assert text in [
        "1/2 USER: hel...  1.2|a,2/2 ASSISTANT: goo...  1.2|a end<bb><c> a-b "
        f'["system", "user", "assistant"]\nx3y b True 1024 False\n{year}!'
        for year in (before, after)
    ]

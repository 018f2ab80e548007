"""Tool calls in a model's text: found whatever the cuts, and what is none stays as it is."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrie as kv
from kvtrie.serve.tool_calls import ToolCall, ToolSyntax, syntax_of
from kvtrie.serve.tool_grammar import grammar_for_tools
from kvtrie.thinking.harmony import HarmonyReader

# The lines of chat templates by which their families are known.
TEMPLATES = {
    "tagged": '{{- \'<tool_call>\\n{"name": "\' }}{{- tool_call.name }}{{- \'", "arguments": \' }}',
    "functions": "{{- '<tool_call>\\n<function=' + call.name + '>\\n' }}{{- '<parameter=' + name + '>\\n' }}",
    "answer": 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.',
    "mistral": '{{- "[TOOL_CALLS] [" }}{{- out[:-1] }}',
    "mistral named": "{{- '[TOOL_CALLS]' + tool['function']['name'] + '[ARGS]' + arguments }}",
    "braces": "{{- '<start_function_call>call:' + name + '{' -}}",
    "fenced": 'Answer with\n```json\n{"name": ...}\n```',
    "seed": "{{- '<seed:tool_call>\\n<function=' + call.name + '>\\n' }}{{- '<parameter=' + name + '>' }}",
    "pairs": "{{- '<tool_call>' + name }}{{- '<arg_key>' + k + '</arg_key>\\n<arg_value>' + v + '</arg_value>' }}",
    "invocations": "{{- '<minimax:tool_call>\\n<invoke name=\"' + name + '\">' }}",
    "prefixed": "{% set token = '\uff5cDSML\uff5c' %}{{ '<' + token + 'function_calls>' }}",
    "kimi": "<|tool_calls_section_begin|>{% for call in calls %}<|tool_call_begin|>{{ call.id }}{% endfor %}",
    "deepseek": "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>{{ name }}",
    "listed": "{{- '<TOOLCALL>[' }}",
    "function": "{{- '<function=' + name + '>' }}",
    "actions": "<|START_ACTION|>[{{ calls }}]<|END_ACTION|>",
    "python": "{{- '<|tool_call_start|>[' }}",
    "lines": "<function_calls>{{ calls }}</function_calls>",
    "harmony": "<|channel|>commentary to={{ 'functions.' + name }}<|message|>",
}
KINDS = {"seed": "functions", "prefixed": "invocations", "actions": "listed", "lines": "python"}  # of one form
NAMES = ("f", "g", "wetter_\u00e4", "get-it")


def syntax(kind: str) -> ToolSyntax:
    found = syntax_of(TEMPLATES[kind])
    assert found is not None and found.form.kind == KINDS.get(kind, kind)
    return found


def read(kind: str, pieces: Sequence[str], names: Any = NAMES) -> tuple[str, list[ToolCall]]:
    reader = syntax(kind).reader(names)
    text = "".join(map(reader.feed, pieces)) + reader.finish()
    return text, reader.calls


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def special(text: str) -> str:
    """DeepSeek's special tokens where ``text`` has <calls begin>, <sep> and others of their kind."""
    names = re.compile("<(calls begin|call begin|sep|call end|calls end)>")
    return names.sub(lambda found: f"<\uff5ctool\u2581{found[1]}\uff5c>".replace(" ", "\u2581"), text)


def prefixed(text: str) -> str:
    return text.replace("|", "\uff5cDSML\uff5c")


F = '{"name": "f", "arguments": {"a": 1}}'
FOUND: list[tuple[str, str, str, list[ToolCall]]] = [
    ("tagged", f"<tool_call>\n{F}\n</tool_call>", "", [call("f", a=1)]),
    ("tagged", f"<tool_call>{F}</tool_call>", "", [call("f", a=1)]),
    ("tagged", f"Let me see.\n<tool_call>\n{F}\n</tool_call>", "Let me see.", [call("f", a=1)]),
    ("tagged", f"Wait.\n\n<tool_call>\n{F}\n</tool_call>\nDone.", "Wait.\n\nDone.", [call("f", a=1)]),
    ("tagged", f"\n\n<tool_call>{F}</tool_call>\n \n<tool_call>{F}</tool_call>\n", "", [call("f", a=1)] * 2),
    ("tagged", f"<tool_call>\n{F}", "", [call("f", a=1)]),  # the end token stands for the closing tag
    ("tagged", f"<tool_call>\n{F}\n</tool", "", [call("f", a=1)]),
    ("tagged", f"<tool_call>[{F}, {F}]</tool_call>", "", [call("f", a=1)] * 2),
    ("tagged", f"<tool_call> <tool_call>{F}</tool_call>", "<tool_call> ", [call("f", a=1)]),
    (
        "tagged",
        '<tool_call>{"name": "g", "arguments": {"x": "}</tool_call>{\\"\\\\", "y": [{"z": {}}]}}</tool_call>',
        "",
        [ToolCall("g", '{"x": "}</tool_call>{\\"\\\\", "y": [{"z": {}}]}')],
    ),
    (
        "tagged",
        '<tool_call>{"arguments": {"\u00fc": "\u65e5\u672c \U0001f600"}, "name": "wetter_\u00e4"}</tool_call>',
        "",
        [ToolCall("wetter_\u00e4", '{"\u00fc": "\u65e5\u672c \U0001f600"}')],
    ),
    ("tagged", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [call("f", a=1)]),
    ("tagged", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [call("f")]),
    ("tagged", '<tool_call>{"name": "f", "arguments":{"a" : 1e2}}</tool_call>', "", [ToolCall("f", '{"a" : 1e2}')]),
    (
        "functions",
        "Now:\n<tool_call>\n<function=f>\n<parameter=a>\nx\ny\n</parameter>\n<parameter=b>\n[1, {}]\n</parameter>\n"
        "</function>\n</tool_call>",
        "Now:",
        [ToolCall("f", '{"a": "x\\ny", "b": [1, {}]}')],
    ),
    (
        "functions",
        "<function=f><parameter=a></parameter> 1\n</parameter></function>"
        "<tool_call><function=g></function></tool_call>",
        "",
        [ToolCall("f", '{"a": "</parameter> 1"}'), call("g")],
    ),
    ("functions", "<tool_call><function=f><parameter=a>True</parameter></function>", "", [call("f", a=True)]),
    ("answer", '{"name": "f", "parameters": {"a": "}"}}', "", [call("f", a="}")]),
    ("answer", ' {"type": "function", "name": "f", "parameters": {}}\n', "", [call("f")]),
    ("answer", '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "", [call("f"), call("g")]),
    ("answer", 'So: <|python_tag|>{"name": "f", "parameters": {}}', "So: ", [call("f")]),
    ("mistral", f"[TOOL_CALLS] [{F}, {F}]", "", [call("f", a=1)] * 2),
    ("mistral", f"Yes[TOOL_CALLS][{F[:-1]}, " + '"id": "abcdefghi"}]', "Yes", [call("f", a=1)]),
    ("mistral named", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get-it[ARGS]{}', "", [call("f", a=1), call("get-it")]),
    ("mistral named", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}', "", [call("f", a=1)]),
    ("mistral named", '[TOOL_CALLS]f{"a": 1}', "", [call("f", a=1)]),
    (
        "braces",
        '<start_function_call>call:f{a:<escape>x, "y"{<end_function_call><escape>,b:[1,2.5,true],'
        "c:{d:<escape><escape>}}<end_function_call>",
        "",
        [call("f", a='x, "y"{<end_function_call>', b=[1, 2.5, True], c={"d": ""})],
    ),
    ("fenced", f"Sure:\n```json\n{F}\n```", "Sure:", [call("f", a=1)]),
    (
        "seed",
        "So:\n<seed:tool_call>\n<function=f>\n<parameter=a>x</parameter>\n<parameter=b>2</parameter>\n</function>\n"
        "</seed:tool_call>",
        "So:",
        [call("f", a="x", b=2)],
    ),
    (
        "pairs",
        "Yes.\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value></arg_value> is <arg_key></arg_value>\n"
        "<arg_key>b</arg_key><arg_value>[1]</arg_value>\n</tool_call><tool_call>g</tool_call>",
        "Yes.",
        [call("f", a="</arg_value> is <arg_key>", b=[1]), call("g")],
    ),
    ("pairs", "<tool_call>g\n", "", [call("g")]),
    (
        "invocations",
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x </parameter>\n</invoke>\n'
        '<invoke name="get-it">\n</invoke>\n</minimax:tool_call>',
        "",
        [call("f", a="x "), call("get-it")],
    ),
    (
        "prefixed",
        prefixed(
            'A\n<|function_calls>\n<|invoke name="f">\n<|parameter name="a" string="true">1</|parameter>\n'
            '<|parameter name="b" string="false">{"c": 1}</|parameter>\n</|invoke>\n</|function_calls>'
        ),
        "A",
        [call("f", a="1", b={"c": 1})],
    ),
    (
        "kimi",
        'On it.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}'
        "<|tool_call_end|><|tool_call_begin|>functions.get-it:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "On it.",
        [call("f", a=1), call("get-it")],
    ),
    ("deepseek", special('<calls begin><call begin>f<sep>{"a": 1}<call end><calls end>'), "", [call("f", a=1)]),
    (
        "deepseek",
        special('<calls begin><call begin>function<sep>f\n```json\n{"a": 1}\n```<call end>\n<call begin>g<sep>{}'),
        "",
        [call("f", a=1), call("g")],
    ),
    ("listed", f"<TOOLCALL>[{F}, {F}]</TOOLCALL>", "", [call("f", a=1)] * 2),
    ("listed", f"<TOOLCALL>\n{F}\n{F}\n</TOOLCALL>.", ".", [call("f", a=1)] * 2),
    ("listed", f"<TOOLCALL>{F}", "", [call("f", a=1)]),
    ("function", 'So: <function=f>{"a": 1}</function><function=g>{}', "So: ", [call("f", a=1), call("g")]),
    (
        "actions",
        '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}\n]<|END_ACTION|>',
        "",
        [call("f", a=1)],
    ),
    (
        "python",
        'Hm.<|tool_call_start|>[f(a=\'it\\\'s ]<|tool_call_end|>\', b=-2.5, c=[true, None], d={"e": "\u00fc"}), g()]'
        "<|tool_call_end|>",
        "Hm.",
        [call("f", a="it's ]<|tool_call_end|>", b=-2.5, c=[True, None], d={"e": "\u00fc"}), call("g")],
    ),
    ("lines", '<function_calls>\nf(a="x")\ng()\n</function_calls>', "", [call("f", a="x"), call("g")]),
    ("lines", '<function_calls>f(a="x")', "", [call("f", a="x")]),
    ("harmony", 'Now.<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>', "Now.", [call("f", a=1)]),
]
NO_CALLS = [
    ("tagged", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("tagged", '<tool_call>\n{"name": "f", "arguments": {"a": "cut'),
    ("tagged", '<tool_call>\n{"name": "f", "argum'),
    ("tagged", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("tagged", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
    ("tagged", '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>'),
    ("tagged", '<tool_call>{"name": ["f"], "arguments": {}}</tool_call>'),
    ("tagged", '<tool_call>{"name": "f", "arguments": "{"}</tool_call>'),
    ("tagged", "<tool_call>[]</tool_call> and <tool_call> alone, <tool_call"),
    ("tagged", "<tool_call>" + '{"a":' * 5000 + "1" + "}" * 5000 + "</tool_call>"),
    ("tagged", '<tool_call>{"name": "f", "arguments": {"a": ' + "[{}, {}], " * 2000 + "</tool_call>"),
    ("tagged", f"<tool_call>{F} and more</tool_call>\n"),
    ("tagged", f" {F} "),
    ("tagged", "<tool_call>" * 50 + "\n\n"),
    ("functions", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
    ("functions", "<tool_call>\n<function=f>\n<parameter=a>\ncut"),
    ("functions", "<tool_call>\n<function=f>\n<parameter=a>1</parameter>"),
    ("functions", "<function=f\n>"),
    ("answer", 'Say {"name": "f", "parameters": {}}'),
    ("answer", '{"name": "f", "parameters": {}} is how.'),
    ("answer", '{"name": "f"}'),
    ("answer", '{"name": "f", "parameters": {"a": '),
    ("answer", "<|python_tag|>print(1)"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, 1]'),
    ("mistral named", "[TOOL_CALLS]unknown[ARGS]{}"),
    ("mistral named", "[TOOL_CALLS]f[ARGS]{"),
    ("braces", "<start_function_call>call:f{a:}<end_function_call>"),
    ("braces", "<start_function_call>call:f{a:<escape>x}<end_function_call>"),
    ("fenced", '```json\n{"size": 1}\n```\n'),
    ("seed", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
    ("pairs", "<tool_call>unknown</tool_call>"),
    ("pairs", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>cut"),
    ("pairs", "<tool_call>f and more</tool_call>"),
    ("invocations", '<minimax:tool_call>\n<invoke name="unknown">\n</invoke>\n</minimax:tool_call>'),
    ("invocations", '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">cut'),
    ("invocations", "<minimax:tool_call>\n</minimax:tool_call>"),
    ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.h:0<|tool_call_argument_begin|>{}"),
    ("kimi", '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": '),
    ("deepseek", special("<calls begin><call begin>h<sep>{}<call end><calls end>")),
    ("deepseek", special("<calls begin><call begin>f<sep>[]<call end><calls end>")),
    ("listed", "<TOOLCALL>[]</TOOLCALL>"),
    ("function", "<function=h>{}</function>"),
    ("actions", '<|START_ACTION|>[{"tool_name": "h", "parameters": {}}]<|END_ACTION|>'),
    ("python", "<|tool_call_start|>[f(1)]<|tool_call_end|>"),
    ("python", "<|tool_call_start|>[f(a=print('x'))]<|tool_call_end|>"),
    ("python", "<|tool_call_start|>[f(**{})]<|tool_call_end|>"),
    ("python", "<|tool_call_start|>[f(a=1e999)]<|tool_call_end|>"),
    ("python", "<|tool_call_start|>[f(a=b'x')]<|tool_call_end|>"),
    ("python", "<|tool_call_start|>[]<|tool_call_end|>"),
    ("python", "<|tool_call_start|>[f(a='cut)]<|tool_call_end|>"),
    ("python", "<|tool_call_start|>[f(a=" + "(" * 5000 + "1" + ")" * 5000 + ")]<|tool_call_end|>"),
    ("lines", "<function_calls>\nimport os\n</function_calls>"),
    ("lines", "<function_calls>\nf(a=1) + g()\n</function_calls>"),
    ("harmony", "<|channel|>commentary to=functions.h<|message|>{}<|call|>"),
    ("harmony", '<|channel|>commentary to=functions.f<|message|>{"a": '),
]


@pytest.mark.parametrize(("kind", "said", "text", "calls"), FOUND)
def test_calls_are_found(kind: str, said: str, text: str, calls: list[ToolCall]) -> None:
    for size in (1, 2, 7, len(said)):
        assert read(kind, [said[at : at + size] for at in range(0, len(said), size)]) == (text, calls)


@pytest.mark.parametrize(("kind", "said"), NO_CALLS)
def test_what_is_no_call_stays_text(kind: str, said: str) -> None:
    for size in (1, 5, len(said)):
        assert read(kind, [said[at : at + size] for at in range(0, len(said), size)]) == (said, [])


def test_text_goes_out_as_soon_as_it_is_certain() -> None:
    reader = syntax("tagged").reader(NAMES)
    assert reader.feed("One < two <tool") == "One < two "
    assert reader.feed("box> three\n") == "<toolbox> three"
    assert reader.feed(f"<tool_call>{F}</tool_call>") == "\n"[:0]
    assert reader.calls == [call("f", a=1)]
    assert reader.feed("\n<tool_call>no") == "\n<tool_call>no"
    assert syntax("answer").reader(NAMES).feed("The answer") == "The answer"


def test_a_call_that_was_cut_is_text_and_later_ones_are_calls() -> None:
    text, calls = read("tagged", [f'<tool_call>{{"name": "f", "arguments": {{"a": <tool_call>{F}</tool_call>'])
    assert (text, calls) == ('<tool_call>{"name": "f", "arguments": {"a": ', [call("f", a=1)])


@pytest.mark.parametrize(
    ("kind", "value", "meant"),
    [
        ("string", "12", "12"),
        ("string", "null", "null"),
        (["string", "null"], "null", None),
        ("integer", "12", 12),
        ("boolean", "True", True),
        ("object", '{"a": [1]}', {"a": [1]}),
        ("number", "much", "much"),
        (None, "1.5", 1.5),
        (None, '"quoted"', '"quoted"'),
    ],
)
def test_schemas_say_what_values_without_quotes_are(kind: Any, value: str, meant: Any) -> None:
    schema = {"properties": {"x": {} if kind is None else {"type": kind}}}
    _, calls = read("functions", [f"<function=f><parameter=x>\n{value}\n</parameter></function>"], {"f": schema})
    assert [json.loads(each.arguments) for each in calls] == [{"x": meant}]


def test_templates_of_other_forms_have_no_syntax() -> None:
    others = ["{{ messages }}", "<tool_call>{{ name }}\n<arg_key>", "```json\n' + arguments", "<tools>", ""]
    assert [syntax_of(each) for each in (None, *others)] == [None] * 6
    escaped = syntax_of('{{- "<tool_call>\\n{\\"name\\": <function-name>}" }}')
    assert escaped is not None and escaped.form.kind == "tagged"
    for tagged in ("{{- '<|python_tag|>' + tool_call.name }}", '```tool_call\\n{{\\"name\\": '):
        assert syntax_of(tagged) is not None
    assert syntax("mistral named").marks == ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")


FRAGMENTS = sorted(
    {part for _, said, *_ in [*FOUND, *NO_CALLS] if len(said) < 400 for part in re.split(r"\b", said)} - {""}
)
WHOLE = [said for _, said, *_ in [*FOUND, *NO_CALLS] if len(said) < 400]


@given(st.data())
@pytest.mark.parametrize("kind", TEMPLATES)
def test_cuts_change_nothing(kind: str, data: st.DataObject) -> None:
    parts = st.one_of(st.sampled_from(FRAGMENTS), st.sampled_from(WHOLE), st.text(max_size=3))
    said = "".join(data.draw(st.lists(parts, max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said)), max_size=20)))
    pieces = [said[start:end] for start, end in zip([0, *cuts], [*cuts, len(said)])]
    text, calls = read(kind, [said])
    assert read(kind, pieces) == read(kind, list(said)) == (text, calls)
    assert calls or text == said
    for each in calls:
        assert each.name in NAMES and isinstance(json.loads(each.arguments), dict)


@pytest.mark.parametrize("part", ["<tool_call>", "<tool_call>{", '<tool_call>{"', '<tool_call>[{"a":', "}", '"', "\n"])
def test_hostile_text_takes_time_in_proportion(part: str) -> None:
    began = time.thread_time()  # whatever else the machine does
    said = part * (60_000 // len(part))
    for kind in ("tagged", "functions", "answer"):
        assert read(kind, [said[at : at + 5] for at in range(0, len(said), 5)]) == (said, [])
    assert time.thread_time() - began < 20


# ---- calls that are required -----------------------------------------------------------------------------------------

TOOLS: list[Mapping[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get-it",
            "parameters": {
                "type": "object",
                "properties": {
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "days": {"$ref": "#/$defs/days"},
                    "place": {"$ref": "#/$defs/place"},
                },
                "required": ["unit"],
                "$defs": {"days": {"type": "integer", "minimum": 0, "maximum": 9}, "place": {"enum": ["there"]}},
            },
        },
    },
    {"type": "function", "function": {"name": "wetter_\u00e4"}},
]


UNKNOWN = ("braces", "python", "lines")  # no grammar
ALONE = ("answer", "kimi", "deepseek", "listed", "actions", "harmony")  # none beside text


@pytest.fixture(scope="module")
def tiny() -> Any:
    return kv.models.load("examples/tiny")


def drawn(model: Any, grammar: str, seed: int) -> str:
    """A text of the grammar, drawn without a model."""
    ends = list(model.end_tokens)
    vocabulary = llguidance.LLTokenizer(model.tokenizer.raw.to_str(), n_vocab=model.config.vocab_size, eos_token=ends)
    matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    chance, tokens = random.Random(seed), []
    while not matcher.is_error() and len(tokens) < 2000:
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))
        tokens.append(int(chance.choice(allowed)))
        if tokens[-1] in ends:
            return str(model.tokenizer.decode(tokens[:-1]))
        matcher.consume_token(tokens[-1])
    raise AssertionError(matcher.get_error() or "no end")


@pytest.mark.parametrize("kind", [kind for kind in TEMPLATES if kind not in UNKNOWN])
def test_a_required_call_is_one_of_a_known_tool(kind: str, tiny: Any) -> None:
    grammar = grammar_for_tools(syntax(kind), TOOLS, True, at_most=3)
    assert grammar is not None
    assert not llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(grammar))
    grammar = grammar.replace("start: analysis? call", "start: call")  # by chance, reasoning would never end
    names = {tool["function"]["name"]: tool["function"].get("parameters") for tool in TOOLS}
    for seed in range(12):
        said = drawn(tiny, grammar, seed)
        if kind == "harmony":
            said = "".join(part for which, part in HarmonyReader("").feed(said) if which == "text")
        text, calls = read(kind, [said], names)
        assert text == "" and 1 <= len(calls) <= 3, f"seed {seed}"
        for each in calls:
            arguments = json.loads(each.arguments)
            assert each.name == "get-it" or arguments == {}
            assert each.name != "get-it" or arguments.pop("unit") in ("C", "F")
            assert (
                arguments.pop("days", 0) in range(10) and arguments.pop("place", "there") == "there" and not arguments
            )


@pytest.mark.parametrize("kind", [kind for kind in TEMPLATES if kind not in (*UNKNOWN, *ALONE)])
def test_calls_in_text_keep_to_their_schemas(kind: str, tiny: Any) -> None:
    grammar = grammar_for_tools(syntax(kind), TOOLS[:1], False)
    assert grammar is not None and not llguidance.LLMatcher.validate_grammar(
        llguidance.LLMatcher.grammar_from_lark(grammar)
    )


def test_marks_that_are_special_tokens_are_written_as_such(tiny: Any) -> None:
    special = {"[TOOL_CALLS]": 2, "[ARGS]": 3}.get  # ids of two special tokens of the model
    grammar = grammar_for_tools(syntax("mistral named"), TOOLS[1:], True, special, at_most=1)
    assert grammar is not None and "<[2]>" in grammar and "<[3]>" in grammar
    two, three = (tiny.tokenizer.decode([token]) for token in (2, 3))
    assert drawn(tiny, grammar, 1) == f"{two}wetter_\u00e4{three}{{}}"


def test_what_a_grammar_cannot_say_has_none() -> None:
    for kind in UNKNOWN:
        assert grammar_for_tools(syntax(kind), TOOLS, True) is None
    assert grammar_for_tools(syntax("tagged"), [], True) is None
    for kind in ALONE:
        assert grammar_for_tools(syntax(kind), TOOLS, False) is None
    bad = {"function": {"name": "f", "parameters": {"properties": {"a>b": {}}}}}
    assert grammar_for_tools(syntax("functions"), [bad], True) is None

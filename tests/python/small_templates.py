"""Chat templates of our own, each with traits that published ones have."""

from __future__ import annotations

_BEGIN = "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"

TEMPLATES = {
    "plain": "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}" + _BEGIN,
    "parts only": (
        "{% for m in messages %}[{{ m['role'] }}]{% for part in m['content'] %}{% if part['type'] == 'text' %}"
        "{{ part['text'] }}{% elif part['type'] == 'image' %}<image>{% endif %}{% endfor %}{{ eos_token }}{% endfor %}"
    ),
    "parts of users only": (
        "{% for m in messages %}{{ m.role }}: {% if m.role == 'user' %}{{ m.content|map(attribute='text')|join('\n') }}"
        "{% else %}{{ m.content|trim }}{% endif %};{% endfor %}" + _BEGIN
    ),
    "either": (
        "{%- macro said(content) -%}{%- if content is string -%}{{ content }}{%- elif content is iterable -%}"
        "{%- for part in content -%}{{ part.text if part.type == 'text' else '<' ~ part.type ~ '>' }}{%- endfor -%}"
        "{%- endif -%}{%- endmacro -%}{% for m in messages %}<{{ m.role }}>{{ said(m.content) }}"
        "{% for call in m.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments if"
        " call.function.arguments"
        " is string else call.function.arguments|tojson }}{% endfor %}</{{ m.role }}>\n{% endfor %}" + _BEGIN
    ),
    "adds arguments": (
        "{% for m in messages %}<|{{ m['role'] }}|>{% if m['tool_calls'] %}{% for call in m['tool_calls'] %}"
        "{{ call['function']['name'] + '\n```json\n' + call['function']['arguments'] + '\n```' }}{% endfor %}{% else %}"
        "{{ m['content'] }}{% endif %}{% endfor %}" + _BEGIN
    ),
    "prints arguments": (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls or [] %}"
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments }}}{% endfor %}{% endfor %}'
    ),
    "goes through arguments": (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
        "<call {{ call.function.name }}>{% for key, value in call.function.arguments|items %}<{{ key }}>"
        "{{ value if value is string else value|tojson }}</{{ key }}>{% endfor %}</call>{% endfor %}{% endfor %}"
    ),
    "tojson": (
        "{% if tools %}{{ tools|tojson(separators=(',', ':'), sort_keys=true) }}\n{{ tools|tojson(indent=2)"
        " }}{% endif %}"
        "{% for m in messages %}{{ m|tojson(true) }}\n{{ m|tojson(false, 1, (';', '='), true) }}{% endfor %}"
    ),
    "a program": (
        "{%- set ns = namespace(first=true, system='', last=-1) -%}\n{%- for m in messages -%}"
        "{%- if m.role == 'system' -%}"
        "{%- set ns.system = ns.system ~ m.content -%}{%- elif m.role == 'user' -%}{%- set ns.last = loop.index0 -%}"
        "{%- endif -%}{%- endfor -%}\n{%- for m in messages if m.role != 'system' -%}\n  {%- if m.role not in "
        "['user', 'assistant', 'tool'] %}{{ raise_exception('no ' + m.role) }}{% endif -%}\n  {{- '[' if ns.first }}"
        "{%- set ns.first = false %}{{ m.role|upper }}{{ ns.system if loop.first }}: {{ m.content | trim }}"
        "{%- if loop.index0 >= ns.last and m.reasoning_content is defined %}({{ m.reasoning_content }}){% endif %}"
        "{{- loop.cycle('/', '-') }}\n{%- endfor %}{{ strftime_now('%d %B %Y') }}"
        "{% for d in documents or [] %}{{ d.title }}={{ d.text }}"
        "{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}" + _BEGIN
    ),
    "alternating": (
        "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
        "{% for m in rest %}"
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate')"
        " }}{% endif %}"
        "{% if loop.index0 == 0 %}{% set content = first + m['content'] %}{% else %}{% set content = m['content'] %}"
        "{% endif %}<turn>{{ content | trim }}</turn>\n{% endfor %}"
    ),
    "thoughts": (
        "{% for m in messages %}{% set c = m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' and "
        "not loop.last else m.content %}{% generation %}{{ m.role ~ '|' ~ c }}{% endgeneration %}"
        "{% if loop.index > 8 %}"
        "{% break %}{% endif %}{% if not c %}{% continue %}{% endif %}\n{% endfor %}"
    ),
    "escaped": (
        "{% for m in messages %}{{ m.role }}={% if m.role == 'tool' %}{{ {'result': m.content}|tojson }}{% else %}"
        "{{ m.content|replace('<', '&lt;') }}{% endif %}\n{% endfor %}"
    ),
    "no tools, no system": (
        "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\n{% elif m.role == 'assistant' %}A: "
        "{{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    ),
    "None is text": (
        "{% for m in messages %}{% if m['content'] is none %}(none){% else %}{{ m['content'] }}{% endif %}"
        "{{ m['content']|string|length }}{{ m['tool_calls']|length if m['tool_calls'] }}{% endfor %}"
    ),
}
TOOL_USE = {
    "default": TEMPLATES["plain"],
    "tool_use": "{{ tools|length }} tools:{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}",
}

# With tools, in the form that Qwen's templates have.
WITH_TOOLS = """
{%- if tools %}{{ '<|im_start|>system\n# Tools\n' }}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ 'Answer with <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

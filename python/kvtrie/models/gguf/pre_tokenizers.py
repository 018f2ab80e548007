"""How text is cut into words before merges apply, by the name a GGUF file gives it (``tokenizer.ggml.pre``).

Each row is what the ``tokenizer.json`` of those models does. A pattern cuts: what matches and what lies between the
matches are pieces of their own, and the next pattern cuts those.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tokenizers
from tokenizers import normalizers, pre_tokenizers

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")


class Rule(NamedTuple):
    """``nfc``: text is normalised first. ``whole``: a word that is a token needs no merges. ``bos``: a text begins with
    the token for it, where the file does not say."""

    patterns: tuple[str, ...]
    nfc: bool = False
    whole: bool = False
    bos: bool = False


_RULES: dict[str, Rule] = {
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion": Rule(
        (_GPT2,)
    ),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Rule((r"\p{N}", _GPT2)),
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "falcon": Rule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": Rule((_LLAMA3,), whole=True, bos=True),
    "dbrx smaug-bpe chatglm-bpe": Rule((_LLAMA3,)),
    "qwen2 kormo f2llmv2": Rule((_QWEN2,), nfc=True),
    "deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2": Rule((_QWEN2,)),
    "qwen35": Rule((_QWEN35,), nfc=True),
    "tekken": Rule((_TEKKEN,), whole=True, bos=True),
    "deepseek-v3 hunyuan-dense": Rule(_DEEPSEEK_V3),
    "deepseek-coder": Rule(_DEEPSEEK_CODER),
}
RULES: dict[str, Rule] = {name: rule for names, rule in _RULES.items() for name in names.split()}


def normalizer(rule: Rule) -> Any:
    return normalizers.NFC() if rule.nfc else None


def pre_tokenizer(rule: Rule) -> Any:
    """Cuts, then writes bytes as the characters that stand for them."""
    cuts = [pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated") for pattern in rule.patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

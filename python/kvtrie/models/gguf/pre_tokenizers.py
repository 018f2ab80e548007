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
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_REST}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_SMALLER_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_JAIS2 = _LLAMA3.removesuffix(r"|\s+(?!\S)|\s+") + rf"|{_SMALLER_SPACES}|\s{{1}}"
_MINICPM5 = (r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+"))
_SEED_CODER = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)


def _cased(upper: str, lower: str, suffix: str, numbers: str, marks: str) -> str:
    """A word is capitals and then small letters, of which one kind may be missing."""
    begin = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{begin}{upper}*{lower}+{suffix}|{begin}{upper}+{lower}*{suffix}"
    return rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+{marks}|{_SPACES}"


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = _cased(_UPPER, _LOWER, "", r"\p{N}", r"[\r\n/]*")
_GPT4O = _cased(_UPPER, _LOWER, f"{_CONTRACTION}?", r"\p{N}{1,3}", r"[\r\n/]*")
_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI = r"\p{Han}+|" + _cased(
    _UPPER[:-1] + _NOT_HAN, _LOWER[:-1] + _NOT_HAN, f"{_CONTRACTION}?", r"\p{N}{1,3}", r"[\r\n]*"
)
_YOUTU = (
    r"[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    r"\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    _cased(_UPPER, _LOWER, f"{_CONTRACTION}?", r"\p{N}", r"[\r\n/]*"),
)
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_KANJI_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_MARKED_WORD = rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK_V3_WORDS = rf"{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_DEEPSEEK_V3 = (r"\p{N}{1,3}", _KANJI_KANA, _DEEPSEEK_V3_WORDS)
_SPARK = (
    r"\p{N}{1,3}",
    _KANJI_KANA,
    rf"{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
    r"\p{N}",
)
_ASIAN = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f"
    r"\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_AFMOE = (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _ASIAN, _DEEPSEEK_V3_WORDS)
_CJK_HANGUL = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Cased letters, as the tokenizer of DeepSeek LLM lists them: not those that Unicode has had since 2019.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK_HANGUL,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_HANGUL, r"\p{N}")
_TINY_AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CHAMELEON = (
    r"<sentinel:[0-9]+>",
    r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)


class Rule(NamedTuple):
    """``nfc``: text is normalised first. ``whole``: a word that is a token needs no merges. ``bos``: a text begins with
    the token for it, where the file does not say. ``raw``: tokens are written in their own letters, spaces as U+2581,
    and bytes without a token as ``<0x0A>``, as in SentencePiece's vocabularies; the others write bytes as letters."""

    patterns: tuple[str, ...]
    nfc: bool = False
    whole: bool = False
    bos: bool = False
    raw: bool = False


_RULES: dict[str, Rule] = {
    "gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling": Rule((_GPT2,)),
    "jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe modern-bert": Rule((_GPT2,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Rule((r"\p{N}", _GPT2)),
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "falcon": Rule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Rule(
        (_LLAMA3,), whole=True, bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": Rule((_LLAMA3,)),
    "glm4 glm5": Rule((_LLAMA3,), whole=True),
    "jais-2": Rule((_JAIS2,)),
    "minicpm5": Rule(_MINICPM5, whole=True),
    "qwen2 kormo f2llmv2": Rule((_QWEN2,), nfc=True),
    "deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2": Rule((_QWEN2,)),
    "laguna": Rule((r"[^\n]+|[\n]+", _QWEN2)),
    "ufakzeka": Rule((_QWEN2.removeprefix(f"{_CONTRACTION}|"),)),
    "qwen35": Rule((_QWEN35,), nfc=True),
    "seed-coder": Rule((_SEED_CODER,)),
    "bailingmoe bailingmoe2 llada-moe": Rule((_BAILING,)),
    "exaone-moe": Rule((_EXAONE_MOE,)),
    "tekken": Rule((_TEKKEN,), whole=True, bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Rule((_GPT4O,)),
    "granite-embed-multi-97m": Rule((_GPT4O,), whole=True),
    "tiny_aya cohere2moe": Rule(_TINY_AYA),
    "kimi-k2": Rule((_KIMI,)),
    "youtu": Rule(_YOUTU, whole=True),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": Rule(_DEEPSEEK_V3),
    "spark2_5": Rule(_SPARK),
    "afmoe": Rule(_AFMOE),
    "deepseek-llm": Rule(_DEEPSEEK_LLM),
    "deepseek-coder": Rule(_DEEPSEEK_CODER),
    "bloom poro-chat gpt3-finnish": Rule((_BLOOM,)),
    "viking": Rule((_BLOOM, r"\p{N}")),
    "superbpe": Rule((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "chameleon": Rule(_CHAMELEON, bos=True),
    "gemma4 granite-embed-multi-311m": Rule((r"[^\n]+|[\n]+",), bos=True, raw=True),
    "sarvam-moe": Rule((r"[^\n]+|[\n]+",), raw=True),
}
RULES: dict[str, Rule] = {name: rule for names, rule in _RULES.items() for name in names.split()}


def normalizer(rule: Rule) -> Any:
    """None where texts stay as they are."""
    if rule.raw:
        return normalizers.Replace(" ", "\u2581")
    return normalizers.NFC() if rule.nfc else None


def pre_tokenizer(rule: Rule) -> Any:
    """Cuts, then writes bytes as the characters that stand for them."""
    cuts = [pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated") for pattern in rule.patterns]
    ends = [] if rule.raw else [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    return pre_tokenizers.Sequence([*cuts, *ends])

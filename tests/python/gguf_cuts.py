"""How text is cut before merges, in Python and the ``regex`` module: the other side of test_gguf_pre_tokenizers.py.

The names are those of llama.cpp, the rules those of the models behind them. Digits that go in threes
are counted here, not matched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import regex

Cut = Callable[[str], Iterator[str]]


def by(pattern: str) -> Cut:
    """What matches, and what lies between, are pieces."""
    compiled = regex.compile(pattern, regex.V1)

    def cut(text: str) -> Iterator[str]:
        at = 0
        for found in compiled.finditer(text):
            yield from (part for part in (text[at : found.start()], found[0]) if part)
            at = found.end()
        if text[at:]:
            yield text[at:]

    return cut


def pieces(text: str, cuts: tuple[Cut, ...]) -> list[str]:
    """Each cut goes on with the pieces of the one before."""
    found = [text] if text else []
    for cut in cuts:
        found = [piece for part in found for piece in cut(part)]
    return found


def threes_from_the_right(text: str) -> Iterator[str]:
    """A run of numbers begins with what is too much for whole groups of three."""
    for run in by(r"\p{N}+")(text):
        if not regex.fullmatch(r"\p{N}+", run):
            yield run
            continue
        first = len(run) % 3
        yield from (part for part in (run[:first], *(run[at : at + 3] for at in range(first, len(run), 3))) if part)


# To Oniguruma, which cuts in the tokenizers library; six numbers of Latin-1 are among them.
OF_A_WORD = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\u00b2\u00b3\u00b9\u00bc-\u00be]"


def decimal_threes_from_the_right(text: str) -> Iterator[str]:
    """The same of decimal digits, in runs that end where a word does; others are left to the next cut."""
    at = 0
    for run in regex.finditer(r"\d+", text):
        if regex.match(OF_A_WORD, text[run.end() : run.end() + 1]):
            continue
        if at < run.start():
            yield text[at : run.start()]
        at = run.end()
        yield from threes_from_the_right(run[0])
    if text[at:]:
        yield text[at:]


ENDING = "'(?:[sS\u017f]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"  # U+017F is an s to whoever ignores case
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
MARKS = r" ?[^\s\p{L}\p{N}]+"
GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LEAD = r"[^\r\n\p{L}\p{N}]?"


def words(numbers: str, *, ending: bool = True, letters: str = r"\p{L}+", marks: str = rf"{MARKS}[\r\n]*") -> str:
    first = f"{ENDING}|" if ending else ""
    return rf"{first}{LEAD}{letters}|{numbers}|{marks}|{SPACES}"


def cased(numbers: str, ends: str, *, ending: str = "", only: str = "") -> str:
    capital, small = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{only}]", rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{only}]"
    either = (rf"{LEAD}{capital}*{small}+{ending}", rf"{LEAD}{capital}+{ending}")
    return rf"{'|'.join(either)}|{numbers}|{MARKS}{ends}|{SPACES}"


ASCII_MARKS = r"[\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e]"
DEEPSEEK = rf"{ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
BLOOM = " ?[^\\s(|.,!?)\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c]+"
LINES = by(r"\n+|[^\n]+")
LLAMA3, QWEN2 = by(words(r"\p{N}{1,3}")), by(words(r"\p{N}"))
O200K = by(cased(r"\p{N}{1,3}", r"[\r\n/]*", ending=f"(?:{ENDING})?"))
ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
FEWER = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1))

# Cased letters without some blocks: Georgian's and those that came later, and letters of formulas.
OLD_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}--[\u0560-\u0588\u10c7\u10cd\u10d0-\u10ff\u1c80-\u1c8f\u2d00-\u2d2f\ua790-\ua7ff\uab30-\uab6f"
    r"\U00010570-\U000105bf\U00016e40-\U00016e7f\U0001d400-\U0001d7ff\U0001df00-\U0001dfff]]"
)

_CUTS: dict[str, tuple[Cut, ...]] = {
    "gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling jina-es jina-de": (by(GPT2),),
    "jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe modern-bert": (by(GPT2),),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": (by(r"\p{N}"), by(GPT2)),
    "default": (by(r"[\p{P}$+<=>^~|]+"), by(GPT2), by(r"\p{N}+"), by("[0-9]{3}")),
    "falcon": (by(r"[\p{P}$+<=>^~|`]+"), by(GPT2), by("[0-9]{3}")),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": (LLAMA3,),
    "dbrx smaug-bpe chatglm-bpe glm4 glm5": (LLAMA3,),
    "jais-2": (by(rf"{ENDING}|{LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{MARKS}[\r\n]*|\s*[\r\n]+|{FEWER}|\s"),),
    "minicpm5": (by(r"\p{N}{1,3}"), by(words(r"\p{N}+"))),
    "qwen2 kormo f2llmv2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2": (QWEN2,),
    "laguna": (LINES, QWEN2),
    "ufakzeka": (by(words(r"\p{N}", ending=False)),),
    "qwen35": (by(words(r"\p{N}", letters=r"[\p{L}\p{M}]+", marks=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")),),
    "seed-coder": (by(words(r"\p{N}", marks=r" ?[^\s\p{L}\p{N}\r\n]+")),),
    "bailingmoe bailingmoe2 llada-moe": (
        by(rf"{ENDING}|(?>{LEAD})\p{{L}}+|\p{{N}}| ?(?>[^\s\p{{L}}\p{{N}}]+)[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"),
    ),
    "exaone-moe": (
        by(
            rf"{ENDING}|{LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|{MARKS}[\r\n/]?|\s*[\r\n]"
            r"|\s+(?!\S)|\s+"
        ),
    ),
    "tekken": (by(cased(r"\p{N}", r"[\r\n/]*")),),
    "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m": (O200K,),
    "tiny_aya cohere2moe": (decimal_threes_from_the_right, O200K),
    "kimi-k2": (by(r"\p{Han}+|" + cased(r"\p{N}{1,3}", r"[\r\n]*", ending=f"(?:{ENDING})?", only=r"--[\p{Han}]")),),
    "youtu": (
        by(
            "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
            f"\ufe30-\ufe4f]+|[\u3105-\u312f]+|{CJK}"
        ),
        by(cased(r"\p{N}", r"[\r\n/]*", ending=f"(?:{ENDING})?")),
    ),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": (by(r"\p{N}{1,3}"), by(CJK), by(DEEPSEEK)),
    "spark2_5": (
        by(r"\p{N}{1,3}"),
        by(CJK),
        by(
            rf"{ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+|[\r\n]"
            r"|\s+(?!\S)|\s+"
        ),
        by(r"\p{N}"),
    ),
    "afmoe": (threes_from_the_right, by(ASIAN), by(DEEPSEEK)),
    "deepseek-coder": (
        by(r"[\r\n]"),
        by(r"\s?\p{L}+"),
        by(r"\s?\p{P}+"),
        by("[\u0800-\u9fa5\uac00-\ud7ff]+"),
        by(r"\p{N}"),
    ),
    "deepseek-llm": (
        by(r"[\r\n]"),
        by(rf"\s?{OLD_CASED}+"),
        by(r"\s?[\x21-\x2f\x3a-\x7e\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
        by(r"\s+$"),
        by("[\u0800-\u9fa5\uac00-\ud7ff]+"),
        by(r"\p{N}+"),
    ),
    "bloom poro-chat gpt3-finnish": (by(BLOOM),),
    "viking": (by(BLOOM), by(r"\p{N}")),
    "superbpe": (by(r"\p{N}+"), by(r"(?<=\d)(?=(?:\d{3})+(?!\d))|(?<!\d)(?=(?:\d{3})+(?!\d))")),
    "chameleon": (
        by("<sentinel:[0-9]+>"),
        by("IMGIMG[A-I]{1,4}Z"),
        by(r"\t|\n| {4}| {2}"),
        by(r"\p{N}"),
        by(r"[\p{P}\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e]"),
        by(GPT2),
    ),
    "gemma4 granite-embed-multi-311m sarvam-moe": (LINES,),
}
CUTS: dict[str, tuple[Cut, ...]] = {name: cuts for names, cuts in _CUTS.items() for name in names.split()}

"""The changes of transformers' tokenizer classes to a ``tokenizer.json``.

Concept. Most folders name a class that takes the file as it is. A few classes take its vocabulary and merges only, and
cut and normalise text by rules of their own, for which ``tokenizer_config.json`` has settings. So the ids of a text
depend on the class, and which one is used depends on ``tokenizer_class`` and on the model's type. Known here are those
of the families that are computed here. Of any other class with rules of its own the file is read as it is, and that is
told as a ``kv.errors.IgnoredWarning``.

Source: transformers 5.24, ``AutoTokenizer.from_pretrained`` and the classes' own files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from .special_tokens import SPACE

if TYPE_CHECKING:
    from .special_tokens import Raw

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


_Step = Union[normalizers.Normalizer, pre_tokenizers.PreTokenizer, decoders.Decoder]


class Steps(NamedTuple):
    """The pipeline of a text. ``model``: settings of ``tokenizers.models.BPE``."""

    normalizer: Optional[normalizers.Normalizer]
    pre_tokenizer: Optional[pre_tokenizers.PreTokenizer]
    decoder: Optional[decoders.Decoder]
    model: Mapping[str, object]


class TokenizerClass(NamedTuple):
    """``special``: the special tokens of folders that do not name theirs, None for none. ``steps``: by settings.

    ``plain``: special tokens are found wherever they stand, and take in no blanks, whatever their entries say.
    """

    special: Mapping[str, Optional[str]]
    steps: Callable[[Mapping[str, object]], Steps]
    plain: bool = False


def _llama(settings: Mapping[str, object]) -> Steps:
    """A text begins with a space that is not there; with ``legacy``, so does what follows a special token."""
    prefix = settings.get("add_prefix_space")
    prefix = True if prefix is None else bool(prefix)
    scheme = "never" if not prefix else "always" if settings.get("legacy", False) else "first"
    ends = [decoders.Strip(content=" ", left=1)] if prefix else []
    return Steps(
        None,
        pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False),
        decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]),
        {"fuse_unk": True, "byte_fallback": True, "unk_token": None},
    )


def _gemma(settings: Mapping[str, object]) -> Steps:
    return Steps(
        normalizers.Replace(" ", SPACE),
        pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous", invert=False),
        decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]),
        {"fuse_unk": True, "byte_fallback": True, "unk_token": f"{settings['unk_token']}"},
    )


def _qwen(pattern: str) -> Callable[[Mapping[str, object]], Steps]:
    def steps(settings: Mapping[str, object]) -> Steps:
        cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
        spell = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space")), use_regex=False)
        words = pre_tokenizers.Sequence([cut, spell])
        model = {"fuse_unk": False, "byte_fallback": False, "unk_token": None}
        return Steps(normalizers.NFC(), words, decoders.ByteLevel(), model)

    return steps


def _gpt2(settings: Mapping[str, object]) -> Steps:
    words = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space")))
    model = {"fuse_unk": False, "byte_fallback": False, "unk_token": None}
    return Steps(None, words, decoders.ByteLevel(), model)


_END = "<|endoftext|>"
_QWEN_SPECIAL = {"unk_token": _END, "eos_token": _END, "pad_token": _END}
CLASSES: Mapping[str, TokenizerClass] = {
    "LlamaTokenizer": TokenizerClass({"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}, _llama),
    "GemmaTokenizer": TokenizerClass(
        {f"{name}_token": f"<{name}>" for name in ("unk", "bos", "eos", "pad", "mask")}, _gemma
    ),
    "Qwen2Tokenizer": TokenizerClass(_QWEN_SPECIAL, _qwen(_QWEN2), plain=True),
    "Qwen3_5Tokenizer": TokenizerClass(_QWEN_SPECIAL, _qwen(_QWEN3_5)),
    "GPT2Tokenizer": TokenizerClass(
        {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": None}, _gpt2
    ),
}
# Classes with rules of their own that are not known here, without "Tokenizer".
OTHERS = frozenset(
    (
        *("Albert", "Barthez", "Bert", "BigBird", "Blenderbot", "Camembert", "CLIP", "CodeLlama", "CodeGen", "Cohere"),
        *(
            "Deberta",
            "DebertaV2",
            "DPRQuestionEncoder",
            "Esmc",
            "Funnel",
            "GPTNeoX",
            "Herbert",
            "Lasr",
            "LayoutLMv2",
            "LayoutLMv3",
        ),
        *("LayoutXLM", "Luke", "MarkupLM", "MBart", "MBart50", "MLuke", "MPNet", "Nllb", "Nougat", "OpenAIGPT"),
        *(
            "Pegasus",
            "Reformer",
            "RemBert",
            "RoFormer",
            "Roberta",
            "SeamlessM4T",
            "Siglip2",
            "Splinter",
            "T5",
            "Tipsv2",
            "Udop",
        ),
        *("VideoPrism", "Whisper", "XGLM", "XLMRoberta", "XLNet"),
    )
)
_OWN = {
    **dict.fromkeys(("gemma3", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("qwen2", "qwen3", "qwen3_next"), "Qwen2Tokenizer"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), "Qwen3_5Tokenizer"),
}
_ALWAYS_OWN = ("qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text")


def class_of(model_type: object, named: str, spells_bytes: bool) -> str:
    """The name of the class that is used for a model whose folder names this one, or ""; what it is called without
    "Fast". ``spells_bytes``: ``tokenizer.json`` is byte-level."""
    named = named.removesuffix("Fast")
    own = _OWN.get(model_type, "") if isinstance(model_type, str) else ""
    if named == "LlamaTokenizer" and spells_bytes and model_type not in _ALWAYS_OWN:
        return ""
    return own if own and (not named or model_type in _ALWAYS_OWN) else named


def is_other(name: str) -> bool:
    return name.removesuffix("Tokenizer") in OTHERS


def as_class(name: str, raw: Raw, settings: Mapping[str, object]) -> Steps | None:
    """The steps of a class where its vocabulary can be one of its own."""
    return CLASSES[name].steps(settings) if name in CLASSES and isinstance(raw.model, models.BPE) else None


def differences(raw: Raw, steps: Steps) -> list[str]:
    """The parts of a tokenizer that are not as the class has them."""
    found = [
        name
        for name in ("normalizer", "pre_tokenizer", "decoder")
        if _state(getattr(raw, name)) != _state(getattr(steps, name))
    ]
    return found + [name for name, value in steps.model.items() if getattr(raw.model, name) != value]


def _state(step: _Step | None) -> bytes | None:
    return None if step is None else bytes(step.__getstate__())

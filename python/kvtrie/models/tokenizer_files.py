"""The tokenizer of a checkpoint folder, with the ids that transformers gives.

Concept. ``tokenizer.json`` has the vocabulary, the rules, and most added tokens. Older folders name further ones in
``tokenizer_config.json`` (``added_tokens_decoder``), ``added_tokens.json`` or ``special_tokens_map.json``; they are
added behind the others, in the order that transformers adds them in. An id that a file says and that this does not lead
to is refused: the model was trained with it.

Each key of ``tokenizer_config.json`` is read, neutral or refused (``SETTINGS``; docs/text.md has the table).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import tokenizers
from tokenizers import AddedToken, models

from ..errors import FormatError, IgnoredWarning, NotSupportedError
from .settings import Setting, Settings, neutral, read, settle
from .tokenizer_classes import CLASSES, as_class, class_of, differences, is_other
from .weights import read_json

if TYPE_CHECKING:
    from .special_tokens import Raw

_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKEN = read("a special token, added where tokenizer.json does not have it; templates know it by this name")
_BATCHES = neutral("of texts that are padded or cut for batches, which happens nowhere here")
_CLASS = neutral("of classes that are not used here")
SETTINGS: Settings = {
    **dict.fromkeys(NAMES, _TOKEN),
    "additional_special_tokens": read("further special tokens, added where tokenizer.json does not have them"),
    "extra_special_tokens": read("the same by its newer name"),
    "model_specific_special_tokens": read("the same by name"),
    "added_tokens_decoder": read("added tokens by id, added where tokenizer.json does not have them"),
    "tokenizer_class": read("some classes cut text by rules of their own"),
    "chat_template": read("how conversations are written"),
    "add_bos_token": read("whether chats begin with bos; other texts do as tokenizer.json says"),
    "add_prefix_space": read("of the classes that have it: whether a space is put before a text"),
    "legacy": read("of LlamaTokenizer: whether a space is put behind special tokens"),
    "add_eos_token": neutral("texts end as tokenizer.json says"),
    "clean_up_tokenization_spaces": read("nothing for BPE; refused for other models, if true"),
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": neutral(
        "spaces are not taken out of texts", False
    ),
    "split_special_tokens": neutral("special tokens of a template would be letters", False),
    "init_inputs": neutral("arguments of a class by their place", [], ()),
    "fast_tokenizer_files": neutral("other files than tokenizer.json are not read", ["tokenizer.json"], []),
    "fix_mistral_regex": neutral("of Mistral's models", False),
    "model_max_length": neutral("texts are as long as the model's context allows"),
    **dict.fromkeys(
        (
            *("max_len", "max_length", "stride", "truncation_strategy", "truncation_side", "truncation", "padding"),
            *("padding_side", "pad_to_multiple_of", "pad_token_type_id", "return_token_type_ids", "model_input_names"),
        ),
        _BATCHES,
    ),
    **dict.fromkeys(
        (
            *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "never_split", "do_basic_tokenize"),
            *("sp_model_kwargs", "spaces_between_special_tokens", "use_default_system_prompt", "errors", "from_slow"),
            *("trim_offsets", "keep_accents", "remove_space", "use_fast", "add_dummy_prefix_space"),
        ),
        _CLASS,
    ),
    **dict.fromkeys(
        (
            *(
                "name_or_path",
                "processor_class",
                "special_tokens_map_file",
                "tokenizer_file",
                "vocab_file",
                "merges_file",
            ),
            *(
                "added_tokens",
                "backend",
                "is_local",
                "local_files_only",
                "transformers_version",
                "image_processor_type",
            ),
            *(
                "feature_extractor_type",
                "response_schema",
                "response_template",
                "files_loaded",
                "verbose",
                "_commit_hash",
            ),
        ),
        neutral("says where the tokenizer comes from, or is for other programs"),
    ),
    "chat_control_tokens": neutral("tokens that are not special are text wherever they stand"),
    "*_token": _TOKEN,
}


class Parts(NamedTuple):
    """``special``: texts of special tokens by name. ``begins_chats``: None where the folder does not say."""

    raw: Raw
    special: dict[str, str]
    settings: dict[str, object]
    begins_chats: bool | None


class _Named(NamedTuple):
    """Tokens that files name: ``special`` by name, ``extra`` ones, and added ones by id."""

    special: dict[str, AddedToken]
    extra: list[AddedToken]
    by_id: dict[int, AddedToken]

    def texts(self) -> dict[str, str]:
        return {name: token.content for name, token in self.special.items()}


def read_folder(folder: Path) -> Parts | None:
    """None where there is no ``tokenizer.json``. Raises ``kv.errors.FormatError`` and ``kv.errors.NotSupportedError``
    naming the file and what in it is wrong, or changes texts in a way that is unknown here."""
    path, where = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not path.exists():
        return None
    raw = _from_file(path)
    settings = read_json(where, required=False)
    settle(settings, {**SETTINGS, **_of_model(raw)}, f"{where}")
    name = _class_name(folder, settings, raw)
    named = _named(folder, settings, CLASSES[name].special if name in CLASSES else {}, raw)
    raw = _as_class(name, raw, {**settings, **named.texts()}, f"{path}")
    _add(raw, named, settings, folder)
    if name in CLASSES and CLASSES[name].plain:
        raw.add_tokens([_special(token.content) for token in (*named.special.values(), *named.extra)])
    begins, bos = settings.get("add_bos_token"), named.texts().get("bos_token", "")
    if begins and raw.token_to_id(bos) is None:
        raise FormatError(f"[models.load] {where}: add_bos_token: got true, allowed false where there is no bos_token")
    return Parts(raw, named.texts(), settings, None if begins is None else bool(begins))


# ---- the files -------------------------------------------------------------------------------------------------------


def _from_file(path: Path) -> Raw:
    try:
        raw = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise FormatError(f"[models.load] {path}: not a tokenizer: {error}") from error
    if getattr(raw.model, "dropout", None):
        raise NotSupportedError(
            f"[models.load] {path}: model.dropout: got {raw.model.dropout}, allowed null: ids by chance"
        )
    return raw


def _of_model(raw: Raw) -> dict[str, Setting]:
    """The part that depends on the kind of vocabulary."""
    if isinstance(raw.model, models.BPE):
        return {}
    return {"clean_up_tokenization_spaces": neutral("spaces are not taken out of texts", False)}


def _class_name(folder: Path, settings: Mapping[str, object], raw: Raw) -> str:
    config = read_json(folder / "config.json", required=False)
    named = settings.get("tokenizer_class") or config.get("tokenizer_class") or ""
    if not isinstance(named, str):
        raise FormatError(f"[models.load] {folder}: tokenizer_class: got {named!r}, allowed a name")
    steps = f"{raw.pre_tokenizer and raw.pre_tokenizer.__getstate__()}{raw.decoder and raw.decoder.__getstate__()}"
    return class_of(config.get("model_type"), named, spells_bytes='"ByteLevel"' in steps)


# ---- added tokens ----------------------------------------------------------------------------------------------------


def _named(folder: Path, settings: Mapping[str, object], defaults: Mapping[str, str | None], raw: Raw) -> _Named:
    where = f"{folder / 'tokenizer_config.json'}"
    told, by_id = dict(settings), dict[int, AddedToken]()
    if "additional_special_tokens" in told and not told.get("extra_special_tokens"):
        told["extra_special_tokens"] = told.pop("additional_special_tokens")
    if "added_tokens_decoder" in settings:
        by_id = {
            _id(key, where): _token(each, where) for key, each in _mapping(settings, "added_tokens_decoder", where)
        }
    else:
        older = f"{folder / 'special_tokens_map.json'}"
        told.update({key: _marked(each, older) for key, each in read_json(Path(older), required=False).items()})
    names = dict(_specials(told, where))
    named = {name: token for name, token in names.items() if token is not None}
    if raw.padding is not None:
        defaults = {"pad_token": raw.padding["pad_token"], **defaults}
    named = {**{name: _special(text) for name, text in defaults.items() if text and name not in names}, **named}
    named = {name: named[name] for name in dict.fromkeys((*NAMES, *named)) if name in named}
    extra = _listed(told.get("extra_special_tokens"), where)
    if "added_tokens_decoder" not in settings:
        texts = {token.content for token in (*named.values(), *extra)}
        by_id = {**_from_added_tokens(folder, texts), **raw.get_added_tokens_decoder()}
    if "extra_special_tokens" not in told:
        extra = _listed(told.get("additional_special_tokens"), where)
    found = {token.content: token for token in by_id.values()}
    return _Named({name: found.get(token.content, token) for name, token in named.items()}, extra, by_id)


def _listed(value: object, where: str) -> list[AddedToken]:
    """Further tokens, where they have no names."""
    if value is not None and not isinstance(value, (list, dict)):
        raise FormatError(
            f"[models.load] {where}: got {value!r} as further special tokens, allowed a list or an object"
        )
    return [_token(each, where) for each in value or ()] if not isinstance(value, dict) else []


def _specials(told: Mapping[str, object], where: str) -> Iterator[tuple[str, AddedToken | None]]:
    """Special tokens by name; None for those that a file says are none."""
    more: dict[str, object] = {}
    for key in ("model_specific_special_tokens", "extra_special_tokens"):
        given = told.get(key)
        more |= given if isinstance(given, dict) else {}
    for name, value in {**told, **more}.items():
        if name in NAMES or name in more or (name.endswith("_token") and isinstance(value, (str, dict, AddedToken))):
            yield name, None if value is None else _token(value, where)


def _from_added_tokens(folder: Path, special: set[str]) -> dict[int, AddedToken]:
    """Those of ``added_tokens.json``, which has ids by texts."""
    path = folder / "added_tokens.json"
    return {
        _id(number, f"{path}"): AddedToken(text, normalized=text not in special, special=text in special)
        for text, number in read_json(path, required=False).items()
    }


def _add(raw: Raw, named: _Named, settings: Mapping[str, object], folder: Path) -> None:
    """Adds what is not there, in the order of transformers. Raises for an id that this does not lead to."""
    there = raw.get_added_tokens_decoder().values()
    same = {repr(token) for token in there}
    adding = [token for _, token in sorted(named.by_id.items()) if repr(token) not in same]
    known = {token.content for token in (*there, *adding)}
    for token in (*named.special.values(), *named.extra):
        if token.content not in known:
            known.add(token.content)
            adding.append(token)
    special = {token.content for token in (*named.special.values(), *named.extra)}
    for token in adding:
        token.special = token.special or token.content in special
    raw.add_tokens(adding)
    for number, token in named.by_id.items():
        found = raw.token_to_id(token.content)
        if found != number:
            name = (
                "tokenizer_config.json: added_tokens_decoder" if "added_tokens_decoder" in settings else "added_tokens"
            )
            raise FormatError(
                f"[models.load] {folder}: {name}: got {token.content!r} with id {number}, allowed {found}, its id by "
                "tokenizer.json and the order of what is added"
            )


def _special(text: str) -> AddedToken:
    return AddedToken(text, special=True, normalized=False)


def _token(value: object, where: str) -> AddedToken:
    if isinstance(value, AddedToken):
        return value
    if isinstance(value, str):
        return _special(value)
    fields = value if isinstance(value, dict) else {}
    flags = {name: fields[name] for name in _FLAGS if name in fields}
    text = fields.get("content")
    if not isinstance(text, str) or not all(isinstance(each, bool) for each in flags.values()):
        raise FormatError(f"[models.load] {where}: got {value!r} as a token, allowed a text, or its fields")
    return AddedToken(text, **flags)


def _marked(value: object, where: str) -> object:
    """A value of special_tokens_map.json, whose tokens are special."""
    if isinstance(value, list):
        return [_marked(each, where) for each in value]
    if isinstance(value, dict) and "content" in value:
        return _token({**value, "special": True}, where)
    return value


def _id(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or not f"{value}".isdecimal():
        raise FormatError(f"[models.load] {where}: got {value!r} as the id of an added token, allowed 0 or more")
    return int(value)


def _mapping(settings: Mapping[str, object], name: str, where: str) -> Iterator[tuple[str, object]]:
    value = settings[name]
    if not isinstance(value, dict):
        raise FormatError(f"[models.load] {where}: {name}: got a JSON {type(value).__name__}, allowed an object")
    yield from value.items()


# ---- the rules of a class --------------------------------------------------------------------------------------------


def _as_class(name: str, raw: Raw, settings: Mapping[str, object], where: str) -> Raw:
    """The tokenizer by the rules of a class. GPT-2's has one rule for cutting words, which many files do not follow
    that name it (SmolLM's digits): then the file is right."""
    steps = as_class(name, raw, settings)
    differ = [] if steps is None else differences(raw, steps)
    if is_other(name) or (name in CLASSES and steps is None) or (name == "GPT2Tokenizer" and differ):
        what = ", ".join(differ) or "the rules of that class"
        text = (
            f"[models.load] {where}: tokenizer_class: got {name}, but the file says otherwise or more of {what}, and "
        )
        warnings.warn(f"{text}is read as it is", IgnoredWarning, stacklevel=5)
        return raw
    if steps is None:
        return raw
    unknown = steps.model.get("unk_token")
    if isinstance(unknown, str) and raw.model.token_to_id(unknown) is None:
        raise FormatError(f"[models.load] {where}: unk_token: got {unknown}, allowed a token of the vocabulary")
    for key, value in {**steps.model, "ignore_merges": False}.items():
        setattr(raw.model, key, value)
    made = tokenizers.Tokenizer(raw.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if getattr(steps, part) is not None:
            setattr(made, part, getattr(steps, part))
    if raw.post_processor is not None:
        made.post_processor = raw.post_processor
    return made

"""The tokenizers of folders: each file and each key is read as transformers reads it, or refused by name."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
import tokenizer_folders
from circles import CIRCLE
from kvtrie.models.tokenizer_classes import OTHERS
from kvtrie.models.tokenizer_files import SETTINGS
from tokenizer_folders import RAW, SPECIAL, Folder, decoder_of, token

SWEPT = {"test": 0, "ci": 400, "soak": 100_000}[CIRCLE]


def loaded(folder: Folder, path: Path) -> Any:
    found = kv.models.load_tokenizer(folder.write(path))
    assert found is not None
    return found


# ---- beside transformers ---------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_every_setting_gives_the_ids_of_transformers_or_is_refused_or_told(tmp_path: Path) -> None:
    """``KVTRIE_CIRCLE=soak`` sweeps all of them."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    every = tokenizer_folders.folders()
    chosen = random.Random(3304).sample(every, min(SWEPT, len(every)))
    outcomes: Counter[str] = Counter()
    for at, folder in enumerate(chosen):
        path = folder.write(tmp_path / str(at))
        outcome = _outcome(path, at)
        outcomes[outcome] += 1
        assert outcome != "silently wrong", folder
    print(f"{len(chosen)} of {len(every)} folders: {dict(outcomes)}")
    assert outcomes["equal"] > 0.8 * len(chosen)


def _outcome(path: Path, seed: int) -> str:
    theirs: Any = None
    try:
        from transformers import AutoTokenizer

        theirs = AutoTokenizer.from_pretrained(str(path))
    except Exception:
        pass
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            ours = kv.models.load_tokenizer(path)
        except kv.Error:
            return "refused"
    assert ours is not None
    if theirs is None:
        return "refused by transformers alone"
    if all(_equal(ours, theirs, text) for text in tokenizer_folders.tried(seed)):
        return "equal"
    return "told" if any(issubclass(each.category, kv.errors.IgnoredWarning) for each in told) else "silently wrong"


def _equal(ours: Any, theirs: Any, text: str) -> bool:
    for adding in (True, False):
        wanted = _ids(lambda adding=adding: theirs.encode(text, add_special_tokens=adding))
        found = _ids(lambda adding=adding: ours.encode(text, adding))
        if adding and wanted is not None and wanted[:2] == [1, 1]:
            wanted = wanted[1:]  # bos once
        if found != wanted:
            return False
    return bool(wanted is None or theirs.decode(wanted) == ours.decode(wanted))


def _ids(encode: Any) -> list[int] | None:
    """None where the library raises, as where the unknown token is unknown."""
    try:
        return list(encode())
    except Exception:
        return None


@pytest.mark.ci
def test_classes_with_rules_of_their_own_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    known = {*OTHERS, "Llama", "Gemma", "Qwen2", "Qwen3_5", "GPT2"}
    for name in {each for each in TOKENIZER_MAPPING_NAMES.values() if each}:
        found: Any = tokenizer_class_from_name(name)
        rebuilds = isinstance(found, type) and issubclass(found, TokenizersBackend) and "__init__" in vars(found)
        if rebuilds and found is not TokenizersBackend:
            assert found.__name__.removesuffix("Tokenizer") in known, name


# ---- added tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RAW)
@pytest.mark.parametrize("where", ["added_tokens_decoder", "added_tokens", "special_tokens_map", "named"])
def test_added_tokens_of_other_files_are_tokens(kind: str, where: str, tmp_path: Path) -> None:
    number = RAW[kind].get_vocab_size()
    folder = {
        "added_tokens_decoder": Folder(
            kind, None, None, {"added_tokens_decoder": {**decoder_of(kind), str(number): token("<extra>")}}
        ),
        "added_tokens": Folder(kind, None, None, {}, {"added_tokens": {"<extra>": number}}),
        "special_tokens_map": Folder(
            kind, None, None, {}, {"special_tokens_map": {"additional_special_tokens": ["<extra>"]}}
        ),
        "named": Folder(kind, None, None, {"image_token": "<extra>"}),
    }[where]
    tokenizer = loaded(folder, tmp_path / "folder")
    assert tokenizer.encode("<extra>", add_special_tokens=False) == [number]
    assert tokenizer.decode([number]) == "<extra>"
    assert ("<extra>" in tokenizer.special_tokens.texts.values()) == (where != "added_tokens")
    assert where != "named" or tokenizer.special["image_token"] == "<extra>"


@pytest.mark.parametrize("number", [3, 10_000])
@pytest.mark.parametrize("file", ["added_tokens_decoder", "added_tokens"])
def test_an_id_that_a_token_does_not_have_is_refused(file: str, number: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {}
    files: dict[str, Any] = {"added_tokens": {"<extra>": number}}
    if file == "added_tokens_decoder":
        settings, files = {file: {**decoder_of("pieces"), str(number): token("<extra>")}}, {}
    folder = Folder("pieces", None, None, settings, files)
    with pytest.raises(kv.errors.FormatError, match=rf"{file}: got '<extra>' with id {number}, allowed 700"):
        loaded(folder, tmp_path / "folder")


@pytest.mark.parametrize(
    "settings",
    [
        {"added_tokens_decoder": []},
        {"added_tokens_decoder": {"x": token("<extra>")}},
        {"added_tokens_decoder": {"700": 1}},
        {"added_tokens_decoder": {"700": {"content": "<extra>", "lstrip": "red"}}},
        {"bos_token": 1},
        {"bos_token": {"lstrip": True}},
        {"extra_special_tokens": 1},
        {"additional_special_tokens": [1]},
        {"tokenizer_class": 1},
        {"add_bos_token": True, "bos_token": None},
    ],
)
def test_wrong_tokens_are_refused(settings: Any, tmp_path: Path) -> None:
    with pytest.raises(kv.errors.FormatError, match=r"models\.load"):
        loaded(Folder("pieces", None, None, settings), tmp_path / "folder")


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"split_special_tokens": True}, "split_special_tokens: got True, allowed False"),
        ({"init_inputs": ["x"]}, "init_inputs"),
        ({"fast_tokenizer_files": ["tokenizer.4.json"]}, "fast_tokenizer_files"),
    ],
)
def test_settings_that_change_texts_otherwise_are_refused(settings: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(kv.errors.NotSupportedError, match=why):
        loaded(Folder("pieces", None, None, settings), tmp_path / "folder")


def test_what_nothing_knows_of_is_told_once(tmp_path: Path) -> None:
    with pytest.warns(kv.errors.IgnoredWarning, match=r"tokenizer_config\.json: nothing here knows of novel") as told:
        loaded(Folder("pieces", None, None, {"novel": 1, "model_max_length": 5}), tmp_path / "folder")
    assert len(told) == 1


def test_lengths_for_batches_cut_and_pad_nothing(tmp_path: Path) -> None:
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 90}, "direction": "Left", "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"}
    folder = Folder("pieces", None, None, json={"truncation": cut, "padding": {**pad, "pad_to_multiple_of": None}})
    plain = loaded(Folder("pieces", None, None), tmp_path / "plain")
    text = "a page of a cache holds many tokens"
    assert loaded(folder, tmp_path / "folder").encode(text) == plain.encode(text)


def test_a_space_behind_special_tokens_is_there_with_legacy_alone(tmp_path: Path) -> None:
    """Of Llama's class, whatever the file itself says."""
    ids = {}
    for legacy in (True, False, None):
        folder = Folder("pieces", "llama", "LlamaTokenizer", {"legacy": legacy})
        tokenizer = loaded(folder, tmp_path / f"{legacy}")
        ids[legacy] = tokenizer.encode("hi</s>hi", add_special_tokens=False)
        assert tokenizer.decode(ids[legacy]) == ("hi</s> hi" if legacy else "hi</s>hi")
    assert ids[False] == ids[None] != ids[True]
    without = loaded(Folder("pieces", "llama", "LlamaTokenizer", {"add_prefix_space": False}), tmp_path / "without")
    assert without.encode("hi", add_special_tokens=False) == ids[False][ids[False].index(2) + 1 :]
    as_it_is = loaded(Folder("pieces", "llama", "PreTrainedTokenizerFast", {"legacy": False}), tmp_path / "fast")
    assert as_it_is.encode("hi</s>hi", add_special_tokens=False) == RAW["pieces"].encode("hi</s>hi").ids[1:]


@pytest.mark.parametrize("says", [True, False, None])
@pytest.mark.parametrize("adds", [True, False])
def test_chats_begin_with_bos_where_a_folder_says_so(says: bool | None, adds: bool, tmp_path: Path) -> None:
    settings = {"add_bos_token": says, "chat_template": "{{ messages[0].content }}</s>"}
    folder = Folder("pieces", None, None, settings, {}, {} if adds else {"post_processor": None})
    tokenizer = loaded(folder, tmp_path / "folder")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "<s>hi"}])
    assert ids.count(1) == int(adds if says is None else says) == int(ids[0] == 1)
    assert tokenizer.encode("hi").count(1) == int(adds)


def test_a_class_with_unknown_rules_is_told(tmp_path: Path) -> None:
    with pytest.warns(kv.errors.IgnoredWarning, match="tokenizer_class: got CohereTokenizer"):
        loaded(Folder("pieces", "llama", "CohereTokenizer"), tmp_path / "folder")
    with pytest.warns(
        kv.errors.IgnoredWarning, match="got GPT2Tokenizer, but the file says otherwise or more of normalizer"
    ):
        loaded(Folder("byte-level", "llama", "GPT2Tokenizer"), tmp_path / "other")


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", "tekken.json"])
def test_folders_without_tokenizer_json_say_what_is_not_read(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(Path(__file__).parent / "goldens" / "llama-gqa-tied", folder)
    (folder / "tokenizer.json").unlink(missing_ok=True)
    (folder / name).write_bytes(b"{}")
    with pytest.raises(kv.errors.NotSupportedError, match=rf"{name}: got a tokenizer in a form that is not read"):
        kv.models.load_tokenizer(folder)
    with pytest.warns(kv.errors.IgnoredWarning, match=rf"{name}: got a tokenizer in a form that is not read"):
        model = kv.models.load(folder)
    assert not model.has_tokenizer


def test_ids_by_chance_are_refused(tmp_path: Path) -> None:
    whole = json.loads(RAW["pieces"].to_str())
    folder = Folder("pieces", None, None, json={"model": {**whole["model"], "dropout": 0.1}})
    with pytest.raises(kv.errors.NotSupportedError, match=r"model\.dropout"):
        loaded(folder, tmp_path / "folder")


def test_every_special_token_that_a_file_names_is_one(tmp_path: Path) -> None:
    """So that it is letters in what users say, whatever its own entry says."""
    plain = {str(number): {**each, "special": False} for number, each in decoder_of("pieces").items()}
    tokenizer = loaded(Folder("pieces", None, None, {"added_tokens_decoder": plain}), tmp_path / "folder")
    assert set(tokenizer.special_tokens.texts.values()) >= {"<s>", "</s>", "<unk>"}
    assert SPECIAL["pieces"] == sorted(tokenizer.special_tokens.texts.values(), key=SPECIAL["pieces"].index)


def test_the_table_of_the_documentation_has_every_setting() -> None:
    rows = (Path(__file__).parents[2] / "docs" / "text.md").read_text(encoding="utf-8").splitlines()
    for key, setting in SETTINGS.items():
        assert any(
            f"`{key}`" in row and f"| {setting.fate}" in row and row.endswith(f"| {setting.why} |") for row in rows
        ), key

"""Which chat templates a checkpoint has, in a folder or a GGUF file, and which of them is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

import kvtrie as kv
from kvtrie.models.gguf.keys import Keys
from kvtrie.models.gguf.reader import read_gguf
from kvtrie.models.gguf.tokenizer import read_text
from text_tokenizer import save_tokenizer

HELLO = [{"role": "user", "content": "hi"}]
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
PLAIN, USE = "{{ messages[0].content }}", "{{ tools|length }} tools:{{ messages[0].content }}"
Files = dict[str, Any]  # by name; what is no text is JSON


def folder(place: Path, files: Files) -> Path:
    save_tokenizer(place, template=False)
    for name, content in {"tokenizer_config.json": {}, **files}.items():
        path = place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return place


def from_folder(place: Path, files: Files) -> kv.models.Tokenizer:
    found = kv.models.Tokenizer.load(folder(place, files))
    assert found is not None
    return found


def from_gguf(path: Path, templates: Any, *, listed: bool = True) -> kv.models.Tokenizer:
    """A file with a vocabulary of bytes and these templates, as gguf-py writes them."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    letters = ["hi", *(chr(byte) if 33 <= byte < 127 else chr(256 + byte) for byte in range(256))]
    writer.add_token_list(letters)
    writer.add_token_types([1] * 257)
    writer.add_token_merges(["h i"])
    if listed:
        writer.add_chat_template(templates)
    else:
        for name, template in templates.items():
            writer.add_string(f"tokenizer.chat_template.{name}", template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = read_text(Keys(read_gguf(path)))
    assert found is not None
    return found.tokenizer


def pairs(**templates: str) -> list[dict[str, str]]:
    return [{"name": name, "template": template} for name, template in templates.items()]


FOLDERS: dict[str, tuple[Files, dict[str, str]]] = {
    "none": ({}, {}),
    "one text": ({"tokenizer_config.json": {"chat_template": PLAIN}}, {"default": PLAIN}),
    "a list": (
        {"tokenizer_config.json": {"chat_template": pairs(default=PLAIN, tool_use=USE)}},
        {"default": PLAIN, "tool_use": USE},
    ),
    "a list without a default": ({"tokenizer_config.json": {"chat_template": pairs(rag=PLAIN)}}, {"rag": PLAIN}),
    "a dict": (
        {"tokenizer_config.json": {"chat_template": {"default": PLAIN, "rag": USE}}},
        {"default": PLAIN, "rag": USE},
    ),
    "a file": (
        {"chat_template.jinja": USE, "tokenizer_config.json": {"chat_template": pairs(default=PLAIN, rag=PLAIN)}},
        {"default": USE},
    ),
    "files": (
        {"chat_template.jinja": PLAIN, "additional_chat_templates/tool_use.jinja": USE},
        {"default": PLAIN, "tool_use": USE},
    ),
    "files without a default": (
        {"additional_chat_templates/rag.jinja": USE, "tokenizer_config.json": {"chat_template": PLAIN}},
        {"rag": USE},
    ),
    "a processor's": ({"chat_template.json": {"chat_template": USE}}, {"default": USE}),
    "a processor's and one of its own": (
        {"chat_template.json": {"chat_template": USE}, "tokenizer_config.json": {"chat_template": PLAIN}},
        {"default": PLAIN},
    ),
    "in a processor's configuration": ({"processor_config.json": {"chat_template": USE}}, {"default": USE}),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_templates_of_a_folder(name: str, tmp_path: Path) -> None:
    files, wanted = FOLDERS[name]
    tokenizer = from_folder(tmp_path, files)
    assert tokenizer.chat_templates == wanted and tokenizer.chat_template == wanted.get("default")


@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in FOLDERS if "processor" not in name])
def test_a_folder_has_the_templates_that_transformers_finds(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    files, wanted = FOLDERS[name]
    found = transformers.PreTrainedTokenizerFast.from_pretrained(folder(tmp_path, files)).chat_template
    assert (found if isinstance(found, dict) else {"default": found} if found else {}) == wanted


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"tokenizer_config.json": {"chat_template": 3}}, r"tokenizer_config\.json: chat_template: got int"),
        ({"tokenizer_config.json": {"chat_template": ["a"]}}, r"tokenizer_config\.json: chat_template: got list"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "a"}]}}, r"chat_template: got list"),
        ({"chat_template.json": {"chat_template": [1]}}, r"chat_template\.json: chat_template: got list"),
        ({"chat_template.json": "{"}, r"chat_template\.json: not valid JSON"),
    ],
)
def test_templates_that_are_none_are_refused(files: Files, text: str, tmp_path: Path) -> None:
    with pytest.raises(kv.errors.FormatError, match=rf"^\[models\.load\] .*{text}"):
        from_folder(tmp_path, files)


def test_templates_of_a_gguf_file(tmp_path: Path) -> None:
    both = pairs(default=PLAIN, tool_use=USE)
    assert from_gguf(tmp_path / "a.gguf", PLAIN).chat_templates == {"default": PLAIN}
    assert from_gguf(tmp_path / "b.gguf", both).chat_templates == {"default": PLAIN, "tool_use": USE}
    assert from_gguf(tmp_path / "c.gguf", both[1:]).chat_templates == {"tool_use": USE}
    alone = from_gguf(tmp_path / "d.gguf", {"rag": USE}, listed=False)
    assert alone.chat_templates == {"rag": USE}, "no list of names is needed"


def test_tools_choose_the_template_for_tools(tmp_path: Path) -> None:
    for tokenizer in (
        from_folder(tmp_path / "folder", FOLDERS["a list"][0]),
        from_gguf(tmp_path / "a.gguf", pairs(default=PLAIN, tool_use=USE)),
    ):
        said = [
            tokenizer.apply_chat_template(HELLO, tokenize=False, **more)
            for more in ({}, {"tools": None}, {"tools": []}, {"tools": TOOLS})
        ]
        assert said == ["hi", "hi", "0 tools:hi", "1 tools:hi"]
        with pytest.warns(kv.errors.IgnoredWarning, match="tools"):
            tokenizer.apply_chat_template(HELLO, tools=TOOLS, chat_template="default")
        assert tokenizer.template(tools=TOOLS).wants().tools and not tokenizer.template().wants().tools


def test_a_template_is_asked_for_by_its_name_or_given(tmp_path: Path) -> None:
    tokenizer = from_folder(tmp_path, FOLDERS["a dict"][0])
    say = tokenizer.apply_chat_template
    assert say(HELLO, tokenize=False, chat_template="rag", tools=TOOLS) == "1 tools:hi"
    assert say(HELLO, tokenize=False, chat_template="<{{ messages[0].content }}>") == "<hi>"
    with pytest.raises(
        kv.errors.ArgumentError, match=r"^\[tokenizer\] chat_template: got 'rga', allowed a template, default, rag$"
    ):
        say(HELLO, chat_template="rga")
    with pytest.raises(kv.errors.ArgumentTypeError, match=r"^\[tokenizer\] chat_template: got 3 \(int\)"):
        say(HELLO, chat_template=3)  # type: ignore[call-overload]
    for number in range(40):  # those that callers give are not kept for ever
        assert say(HELLO, tokenize=False, chat_template=f"{number}{PLAIN}") == f"{number}hi"
    assert len(tokenizer._compiled) < 20


def test_no_default_is_an_error_that_names_what_there_is(tmp_path: Path) -> None:
    tokenizer = from_gguf(tmp_path / "a.gguf", pairs(tool_use=USE, rag=PLAIN))
    with pytest.raises(kv.errors.ArgumentError, match=r"no default among .*, allowed one by name: rag, tool_use$"):
        tokenizer.apply_chat_template(HELLO)
    assert tokenizer.apply_chat_template(HELLO, tokenize=False, tools=TOOLS) == "1 tools:hi"


def test_a_template_that_is_set_anew_is_taken(tmp_path: Path) -> None:
    tokenizer = from_folder(tmp_path, FOLDERS["one text"][0])
    assert tokenizer.apply_chat_template(HELLO, tokenize=False) == "hi"
    tokenizer.chat_template = "{{ messages[0].content|upper }}"
    assert tokenizer.apply_chat_template(HELLO, tokenize=False) == "HI"
    tokenizer.chat_template = None
    with pytest.raises(kv.errors.NotSupportedError, match="no chat template"):
        tokenizer.apply_chat_template(HELLO)


def test_templates_see_every_special_token_that_has_a_name(tmp_path: Path) -> None:
    settings = {
        "bos_token": {"content": "<s>", "special": True},
        "image_token": "<image>",
        "mask_token": None,
        "add_bos_token": True,
        "extra_special_tokens": {"boi_token": "<boi>", "place": "<place>"},
        "model_max_length": 5,
    }
    tiny = Path(__file__).parents[2] / "examples/tiny"
    (tmp_path / "tokenizer.json").write_bytes((tiny / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = kv.models.Tokenizer.load(tmp_path)
    assert tokenizer is not None
    assert tokenizer.special == {
        "bos_token": "<s>", "image_token": "<image>", "boi_token": "<boi>", "place": "<place>"
    }  # fmt: skip


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "tokenize", "self", "tools"])
def test_no_variable_takes_the_place_of_an_argument(name: str) -> None:
    model = kv.models.load(Path(__file__).parents[2] / "examples/tiny")
    with pytest.raises(kv.errors.ArgumentError, match=rf"^\[model\.chat\] template: got '{name}', allowed variables"):
        model.chat_tokens(HELLO, tools=[], template={name: []})

"""Load a model, say what its files say, and compare its logits with transformers'."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

import kvtrie as kv
from kvtrie.viz.words import format_bytes, plural

if TYPE_CHECKING:
    from kvtrie.models import Model

_TEXT = "The quick brown fox jumps over the lazy dog. 1, 2, 3: what comes next?"
_TOKENS = 64  # that are compared at most
_NARROW = 12  # columns of a line's name
_QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
_EPILOG = """Of each file it lists the keys that were read, those that do not matter, and those that nothing here knows;
then what a prompt begins with and what the chat template reads. Where transformers and torch are installed, the logits
of a text are compared with theirs. Exit code 1: the model is refused, or its logits differ."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "model", metavar="MODEL", nargs="?",
        help="a folder, a GGUF file, a name in the hub's cache, or tiny (default: the model that was downloaded)",
    )  # fmt: skip
    parser.add_argument("--device", help="as kv.Device takes it (default: the best one)")
    parser.add_argument(
        "--text", default=_TEXT, help=f"what is compared (default: a sentence; {_TOKENS} tokens at most)"
    )
    parser.add_argument("--no-compare", action="store_true", help="do not load transformers")


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    from kvtrie.models import default

    path = default.choose(arguments.model).path
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", kv.errors.IgnoredWarning)
        model = kv.models.load(path, arguments.device)
        lines = [*_of_files(model), *_of_text(model)]
    lines += [("told", str(warning.message)) for warning in told]
    for title, text in lines:
        _print(out, title, text)
    return 0 if arguments.no_compare else _compare(model, path, arguments.text, out)


def _compare(model: Model, path: str, text: str, out: TextIO) -> int:
    from kvtrie.models import compared

    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    found = compared.with_transformers(model, path, text, _TOKENS)
    _print(out, "logits", str(found))
    return 0 if found.is_right else 1


def _print(out: TextIO, title: str, text: str) -> None:
    print(f"{title:<{_NARROW}}{text}", file=out)


def _of_files(model: Model) -> Iterator[tuple[str, str]]:
    config = model.config
    layers, weights = plural(config.num_hidden_layers, "layer"), format_bytes(model.nbytes)
    yield "model", f"{type(model).__name__}: {layers}, {config.vocab_size} tokens, {weights} as {model.dtype}"
    for name, settled in model.account.items():
        for title, keys in zip(settled._fields, settled):
            if keys:
                yield title, f"{name}: {', '.join(sorted(keys))}"


def _of_text(model: Model) -> Iterator[tuple[str, str]]:
    if not model.has_tokenizer:
        yield "tokenizer", "none: token ids work without"
        return
    tokenizer = model.tokenizer
    begin, end = (tokenizer.decode(ids) or "nothing" for ids in tokenizer.ends)
    yield "tokenizer", f"{tokenizer.vocab_size} tokens; texts begin with {begin} and end with {end}"
    for name in tokenizer.chat_templates:
        for sentence in tokenizer.template(name).wants().sentences():
            yield "template", f"{name}: {sentence}"
    if not tokenizer.chat_templates:
        yield "template", "none: chats are refused, texts are not"

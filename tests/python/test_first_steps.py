"""What people type first: versions, names of models, and what objects say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from kvtrie.cli import build_parser, main
from kvtrie.models import default
from processes import run_python
from serving import TINY


def test_the_command_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"kvtrie {kv.__version__}\n"
    assert run_python("-m", "kvtrie", "--version").stdout == f"kvtrie {kv.__version__}\n"


def test_a_context_has_two_names() -> None:
    for command in ("serve", "chat", "quality"):
        for name in ("--context", "--ctx-size"):
            assert build_parser().parse_args([command, name, "512"]).context == 512


def test_models_have_the_names_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert kv.models.load("tiny").fingerprint == kv.models.load(TINY).fingerprint
    assert kv.models.load_tokenizer("tiny") is not None
    monkeypatch.setattr(default, "found", lambda: TINY)
    assert kv.models.load("smollm2").fingerprint == kv.models.load(TINY).fingerprint
    assert default.choose("smollm2").path == str(TINY)
    (tmp_path / "tiny").mkdir()  # a path is before a name
    with pytest.raises(kv.errors.FormatError):
        kv.models.load("tiny")


def test_a_named_model_that_is_not_here_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(default, "found", lambda: None)
    monkeypatch.setattr(default, "shipped", lambda: None)
    for call in (kv.models.load, kv.models.load_tokenizer, default.choose):
        with pytest.raises(
            kv.errors.ArgumentError, match=r"got 'smollm2', which is not on this machine, .*kvtrie download"
        ):
            call("smollm2")
    with pytest.raises(kv.errors.ArgumentError, match="got 'tiny', which is not on this machine"):
        kv.models.load("tiny")


def test_completions_of_models_are_its_own() -> None:
    names = dir(kv.models)
    assert {"load", "load_tokenizer", "Tokenizer", "Llama"} <= set(names)
    assert not {"Any", "os", "Path", "warnings", "NamedTuple"} & set(names)
    assert [name for name in names if not hasattr(kv.models, name)] == []


def test_a_tokenizer_and_a_plan_say_what_they_are() -> None:
    model: Any = kv.models.load(TINY)
    said = repr(model.tokenizer)
    assert said.startswith(f"<kvtrie.Tokenizer {model.tokenizer.vocab_size} tokens, ") and "eos_token=" in said
    assert "\n" not in said and len(said) < 300
    tokens = model.tokenizer.encode("A cache is a cache.")
    with kv.PrefixCache(model.caches(capacity=256)) as cache:
        assert repr(cache.plan(tokens)).startswith("<kvtrie.ReusePlan 0 of 0 matched tokens")
        with cache.begin(tokens) as session:
            for step in session.prefill(chunk=64):
                model(step)
        plan = cache.plan(tokens)
        assert f"{plan.reusable} of {plan.matched} matched tokens, device" in repr(plan)


def test_a_cache_with_a_tokenizer_shows_and_takes_text() -> None:
    model: Any = kv.models.load(TINY)
    text = "A cache is a cache."
    with kv.PrefixCache(model.caches(capacity=256), tokenizer=model.tokenizer) as cache:
        assert cache.tokenizer is model.tokenizer
        with cache.begin(model.tokenizer.encode(text)) as session:
            for step in session.prefill(chunk=64):
                model(step)
        shown = (cache.tree(), cache.to_dot(), cache.to_svg(), cache._repr_html_(), cache.tree(decode=str))
        assert ["A cache is" in each for each in shown] == [True] * 4 + [False]
        found = cache.explain("A cache is another thing.")
        assert 0 < found.matched < len(model.tokenizer.encode(text)) and "' a cache.'" in str(found)
    assert model.prefix_cache.tokenizer is model.tokenizer


def test_a_cache_without_one_says_so() -> None:
    with kv.PrefixCache([]) as cache:
        with pytest.raises(
            kv.errors.ArgumentTypeError, match="allowed integers, or a text where the cache has a tokenizer"
        ):
            cache.explain("a text")
        with pytest.raises(kv.errors.ArgumentTypeError, match="tokenizer: got 5"):
            kv.PrefixCache([], tokenizer=5)  # type: ignore[arg-type]


def test_rewind_right_behind_begin() -> None:
    """Of a prompt that is only recorded, too, the first tokens are left."""
    model: Any = kv.models.load(TINY)
    with kv.PrefixCache(model.caches(capacity=256)) as cache:
        with cache.begin(list(range(10, 30))) as session:
            session.rewind(12)
            assert (session.length, session.remaining.tolist()) == (0, list(range(10, 22)))
            for step in session.prefill():
                model(step)
        with cache.begin(list(range(10, 30))) as session:
            assert session.reused == 12
            session.rewind(15)
            assert session.remaining.tolist() == [22, 23, 24]
            session.rewind(5)
            assert (session.length, len(session.remaining)) == (5, 0)

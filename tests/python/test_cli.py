"""The command line, in process: text, exit codes, and the conversation behind ``chat``."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from kvtrie import _health
from kvtrie.cli import doctor, main
from kvtrie.cli.conversation import Chat, Settings
from processes import PATIENCE
from random_models import random_model
from reference_llama import random_llama, save_checkpoint
from text_tokenizer import VOCAB, save_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(folder, *random_llama(3, vocab=VOCAB, eos_token_id=VOCAB - 1))
    return save_tokenizer(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return kv.models.load(folder)


class Talk:
    """A chat whose answers are read back."""

    def __init__(self, model: Any, **settings: Any) -> None:
        self.out = io.StringIO()
        self.cache = kv.PrefixCache(model.caches(capacity=2048, dtype="float32"))
        self.chat = Chat(model, self.cache, Settings(**{"max_tokens": 6, "temperature": 0.0, **settings}), self.out)

    def say(self, line: str) -> str:
        self.out.seek(0)
        self.out.truncate()
        assert self.chat.handle(line)
        return self.out.getvalue()

    @property
    def tokens(self) -> list[int]:
        return [int(token) for token in self.chat.branch.session.tokens]


@pytest.fixture
def talk(model: Any) -> Any:
    talk = Talk(model)
    yield talk
    talk.chat.close()
    talk.cache.close()


def figures(text: str) -> tuple[int, int, int]:
    """(prompt, reused, computed) of a turn's line."""
    found = re.search(r"prompt (\d+) \| reused (\d+) \| computed (\d+)", text)
    assert found, text
    return int(found[1]), int(found[2]), int(found[3])


def run(*argv: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(argv, out), out.getvalue()


def test_devices() -> None:
    code, text = run("devices")
    assert code == 0 and text.startswith("[0] ") and "unified memory" in text
    code, text = run("devices", "--json")
    assert code == 0 and len(json.loads(text)) == len(kv.devices())


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "devices", list)
    code, text = run("devices")
    assert code == 1 and "doctor" in text
    code, text = run("doctor", "--quick")
    assert code == 1 and "apt-get install pocl-opencl-icd" in text


def test_doctor_runs_the_kernels() -> None:
    findings = list(doctor.examine())
    assert {finding.what for finding in findings} >= {
        "kvtrie._core",
        "libOpenCL.so.1",
        "OpenCL device",
        "kernels",
        "kernel cache",
    }
    kernels = [finding for finding in findings if finding.what == "kernels"]
    assert len(kernels) == len(kv.devices()) and all(finding.state == "ok" for finding in kernels)


def test_doctor_sees_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kv.ops.softmax
    monkeypatch.setattr(kv.ops, "softmax", lambda x: kv.ops.add(right(x), right(x)))
    code, text = run("doctor")
    assert code == 1 and "softmax" in text


def test_doctor_names_the_missing_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_health, "LIBRARIES", (("libabsent.so.9", "libabsent9", "a test"),))
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    code, text = run("doctor", "--quick")
    assert code == 1
    assert "apt-get install libabsent9" in text and f"no .icd file in {tmp_path}" in text


def test_wrong_command_is_exit_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["dance"])
    assert error.value.code == 2


def test_chat_needs_a_checkpoint_with_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("chat", str(tmp_path / "absent"))[0] == 1
    assert "absent" in capsys.readouterr().err
    save_checkpoint(tmp_path, *random_llama(3, vocab=VOCAB))
    assert run("chat", str(tmp_path))[0] == 1
    assert "tokenizer.json" in capsys.readouterr().err
    save_tokenizer(tmp_path, template=False)
    assert run("chat", str(tmp_path))[0] == 1
    assert "--raw" in capsys.readouterr().err


@pytest.mark.parametrize(("raw", "dtype"), [(False, "q8_0"), (True, "float16")])
def test_chat_from_standard_input(folder: Path, raw: bool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\n/tree\n/stats\nmore\n/quit\nnever\n"))
    options = ["--max-tokens", "4", "--capacity", "512", "--dtype", dtype, *(["--raw"] if raw else [])]
    code, text = run("chat", str(folder), *options)
    assert code == 0 and "error" not in text
    assert f" MiB {dtype} on " in text
    assert len(re.findall(r"prompt \d+ \| reused", text)) == 2


def test_second_turn_reuses_the_first(talk: Talk) -> None:
    prompt, reused, computed = figures(talk.say("hello"))
    assert (reused, computed) == (0, prompt)
    said = len(talk.tokens)
    prompt, reused, computed = figures(talk.say("and again"))
    assert reused == said - 1 and computed == prompt - reused


def test_undo_forgets_the_turn(talk: Talk) -> None:
    first = talk.say("hello")
    before = talk.tokens
    talk.say("something else")
    assert f"rewound to {len(before)} tokens" in talk.say("/undo")
    assert talk.tokens == before
    talk.say("/undo")
    assert "nothing to undo" in talk.say("/undo")
    again = talk.say("hello")
    assert again.splitlines()[0] == first.splitlines()[0]


def test_retry_computes_one_token(talk: Talk) -> None:
    first = talk.say("hello")
    prompt = figures(first)[0]
    before = talk.tokens
    again = talk.say("/retry")
    assert figures(again) == (prompt, prompt - 1, 1)
    assert talk.tokens == before  # greedy: the same answer


def test_retry_draws_anew(model: Any) -> None:
    talk = Talk(model, temperature=2.0, max_tokens=12)
    talk.say("hello")
    before = talk.tokens
    talk.say("/retry")
    assert talk.tokens != before
    messages = [message["role"] for message in talk.chat.branch.messages]
    assert messages == ["user", "assistant"]


def test_branches_do_not_disturb_each_other(talk: Talk) -> None:
    talk.say("hello")
    main_tokens = talk.tokens
    assert "branched in" in talk.say("/branch other")
    assert talk.chat.prompt == "other> "
    assert talk.tokens == main_tokens
    talk.say("on the branch")
    other_tokens = talk.tokens
    talk.say("/switch main")
    assert talk.tokens == main_tokens
    _, reused, _ = figures(talk.say("on the main line"))
    assert reused >= len(main_tokens) - 1
    talk.say("/switch other")
    assert talk.tokens == other_tokens
    assert "there is a branch" in talk.say("/branch other")
    assert "no branch" in talk.say("/switch nowhere")


@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_every_kind_of_model_chats(model: Any, kind: str) -> None:
    """Turns, /undo, /retry and branches where not every length can be restored; answers are those of a fresh chat."""
    other = random_model(kind, vocab_size=VOCAB)
    other.tokenizer = model.tokenizer
    talk = Talk(other)
    talk.say("hello")
    said = len(talk.tokens)
    assert figures(talk.say("and again"))[1] == said - 1  # all but the token that was recorded last
    after_two = talk.tokens
    assert "error" not in talk.say("/undo")
    assert talk.tokens == after_two[:said]
    talk.say("and again")
    assert talk.tokens == after_two
    assert figures(talk.say("/retry"))[2] == 1
    talk.say("/branch other")
    talk.say("on the branch")
    talk.say("/switch main")
    assert talk.tokens == after_two
    assert "slots" in talk.say("/stats") or kind == "window"
    fresh = Talk(other)
    fresh.say("hello")
    fresh.say("and again")
    assert fresh.tokens == after_two
    assert talk.cache.check() == []


def test_unknown_commands_get_help(talk: Talk) -> None:
    assert "/branch" in talk.say("/dance") and "/branch" in talk.say("/")


def test_an_error_ends_the_turn_not_the_conversation(model: Any) -> None:
    talk = Talk(model)
    talk.say("hello")
    before = talk.tokens
    assert "error" in talk.say("x" * 5000)
    assert talk.tokens == before
    assert "prompt" in talk.say("shorter")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with the package in it, without its core."""
    folder = tmp_path / "tree" / "python"
    ignored = shutil.ignore_patterns("_core*.so", "__pycache__")
    shutil.copytree(Path(kv.__file__).parent, folder / "kvtrie", ignore=ignored)
    return folder


def run_copy(folder: Path, *arguments: str) -> Any:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_doctor_runs_where_nothing_is_built(copied: Path) -> None:
    done = run_copy(copied, "-m", "kvtrie", "doctor")
    assert done.returncode == 1 and done.stderr == ""
    assert "kvtrie._core" in done.stdout and "it is not built" in done.stdout
    assert done.stdout.splitlines()[-1] == "to mend it: pip install --force-reinstall kvtrie"
    (copied.parent / "dev").touch()
    done = run_copy(copied, "-m", "kvtrie", "doctor")
    assert done.stdout.splitlines()[-1] == "to mend it: ./dev build", "in a source tree"


def test_doctor_names_the_package_of_the_library_that_the_core_misses(copied: Path) -> None:
    message = "libclblast.so.1: cannot open shared object file: No such file or directory"
    (copied / "kvtrie" / "_core.py").write_text(f"raise ImportError({message!r})\n")
    done = run_copy(copied, "-m", "kvtrie", "doctor")
    assert done.returncode == 1 and done.stderr == ""
    assert message in done.stdout
    assert done.stdout.splitlines()[-1] == "to mend it: apt-get install libclblast1"


def test_an_import_without_the_core_says_who_knows_more(copied: Path) -> None:
    done = run_copy(copied, "-c", "import kvtrie")
    assert done.returncode == 1 and done.stdout == ""
    assert "python -m kvtrie doctor" in done.stderr.splitlines()[-1]


def test_doctor_shows_the_vectors() -> None:
    code, text = run("doctor")
    widths = [kv.ops.vector_width(device) for device in kv.devices()]
    assert code == 0 and all(f"{width} floats" in text for width in widths)
    assert set(widths) <= {4, 8, 16}
    with pytest.raises(kv.NotSupported, match="device"):
        kv.ops.vector_width("host")

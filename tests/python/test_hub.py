"""Names of hub models: found where the hub's tools put them, and never downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvtrie as kv
from gguf_files import checkpoint, write
from reference_llama import random_llama, save_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = "import sys, kvtrie as kv\ntry: print(kv.models.load(sys.argv[1]).fingerprint)\nexcept kv.Error as e: print(e)"


def snapshot(cache: Path, name: str) -> Path:
    """The folder of ``name``'s ``main``, as documented for the hub's cache."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    return folder


def load(name: str, folder: Path, **environment: str) -> str:
    """In a process of its own: the hub's package reads the environment when it is imported."""
    plain = {
        key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGINGFACE_", "XDG_CACHE"))
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name],
        cwd=folder,
        env={**plain, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_names_resolve_in_the_cache(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    folder = save_checkpoint(snapshot(one / "hub", "someone/tiny.model-1"), *random_llama(3))
    file = write(*checkpoint("llama-gqa-tied"), snapshot(two, "someone/tiny-GGUF") / "model.gguf")
    assert load("someone/tiny.model-1", tmp_path, HF_HOME=str(one)) == kv.models.load(folder).fingerprint
    assert load("someone/tiny-GGUF", tmp_path, HF_HUB_CACHE=str(two)) == kv.models.load(file).fingerprint
    missing = load("someone/other", tmp_path, HF_HUB_CACHE=str(two))
    assert "[models.load] path: got 'someone/other'" in missing and "`hf download someone/other`" in missing


def test_a_folder_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "someone" / "model", *random_llama(3))
    monkeypatch.chdir(tmp_path)
    assert kv.models.load("someone/model").config.vocab_size == 128


def test_a_folder_of_gguf_files(tmp_path: Path) -> None:
    """One is it; of several one has to be named."""
    file = write(*checkpoint("llama-gqa-tied"), tmp_path / "a.gguf")
    assert kv.models.load(tmp_path).fingerprint == kv.models.load(file).fingerprint
    write(*checkpoint("llama-gqa-tied"), tmp_path / "b.gguf")
    with pytest.raises(kv.errors.FormatError, match=r"got 2 GGUF files, allowed the path of one: a\.gguf, b\.gguf"):
        kv.models.load(tmp_path)


@pytest.mark.parametrize("path", ["/nonexistent/file.gguf", "no-such-folder", "a/b/c"])
def test_what_is_nowhere(path: str) -> None:
    with pytest.raises(kv.errors.FormatError, match="allowed a checkpoint folder, a GGUF file or organisation/model"):
        kv.models.load(path)

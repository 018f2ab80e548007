"""`python -m kvtrie inspect FOLDER`: what it lists is what there is, whatever else is in the folder."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from disk_worker import FINGERPRINT, conversations, go_on, make, words
from kvtrie.cli import main
from processes import run_python


def inspect(folder: Path, *options: str) -> tuple[int, str]:
    out = io.StringIO()
    code = main(["inspect", str(folder), *options], out)
    return code, out.getvalue()


def as_json(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(inspect(folder, "--json")[1])
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a hybrid model left: a trunk with two branches, and a conversation of somebody else."""
    folder = tmp_path / "folder"
    cache, model = make("hybrid", disk=folder)
    trunk = words(1, 70)
    for text, namespace in ((trunk + words(2, 30), "default"), (trunk + words(3, 10), "default"), (trunk, "you")):
        go_on(cache, model, text, namespace)
        assert cache.flush()
    cache.close()
    return folder


def test_the_table(folder: Path) -> None:
    code, text = inspect(folder)
    assert code == 0
    header, *rows = text.splitlines()
    assert header.split() == ["namespace", "tokens", "kinds", "point", "dtype", "bytes", "age"]
    snapshots = [row for row in rows if row.startswith(("default", "you"))]
    assert len(snapshots) == len(os.listdir(folder)) - 1
    assert any("[0," in row and "chunk+full" in row for row in snapshots)
    assert all("float32" in row and re.search(r" (s|min|h)\s*$", row) for row in snapshots)
    assert f"fingerprint: {FINGERPRINT}" in text
    assert "being written" not in text and "not ours" not in text and "of no use" not in text


def test_the_figures_agree_with_the_cache(folder: Path) -> None:
    """Tokens, bytes, points and places as the cache itself knows them once it has opened the folder."""
    found = as_json(folder)
    assert found["bytes"] == sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name != "lock")
    assert (found["unusable"], found["temporary"], found["others"]) == (0, 0, 0)
    assert found["namespaces"] == 2
    cache, _ = make("hybrid", disk=folder)
    assert found["tokens"] == cache.stats()["tokens"]
    assert found["points"] >= cache.stats()["restore_points"] > 0
    assert found["files"] == cache.stats()["disk"]["files"]
    ends = {(node.namespace, node.end) for node in cache.nodes()}
    assert {(each["namespace"], each["end"]) for each in found["snapshots"]} == ends
    assert {kind for each in found["snapshots"] for kind in each["kinds"]} == {"chunk", "full", "recurrent", "window"}
    cache.close()


def test_the_tree(folder: Path) -> None:
    _, text = inspect(folder, "--tree")
    rows = [row for row in text.splitlines() if row.lstrip().startswith(("default", "you"))]
    depths = {row.split()[1]: len(row) - len(row.lstrip()) for row in rows if "[" in row and "default" in row}
    assert min(depths.values()) == 0
    assert depths[next(span for span in depths if span.endswith(",100)"))] > 0
    assert len(rows) == len(as_json(folder)["snapshots"])


def test_while_a_cache_has_it_open(folder: Path) -> None:
    """No lock is taken, nothing is changed, and a cache can be opened while somebody looks."""
    cache, model = make("hybrid", disk=folder)
    before = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(folder)}
    assert inspect(folder)[0] == 0
    assert {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(folder)} == before
    go_on(cache, model, words(5, 40))
    assert cache.flush()
    assert as_json(folder)["tokens"] == cache.stats()["tokens"]
    cache.close()


def test_what_is_of_no_use_has_a_reason(folder: Path) -> None:
    snapshot = next(path for path in folder.iterdir() if path.name != "lock")
    content = snapshot.read_bytes()
    names = [f"{digit}{snapshot.name[1:]}" for digit in "0123456789abcdef" if digit != snapshot.name[0]]
    (folder / names[0]).write_bytes(content)  # another's name
    (folder / names[1]).write_bytes(content[:100])
    (folder / names[2]).symlink_to(snapshot)
    os.mkfifo(folder / names[3])
    (folder / names[4]).write_bytes(b"no snapshot at all, but long enough to be told from one " * 9)
    (folder / names[5]).mkdir()
    (folder / f"tmp-{names[0]}.3").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    code, text = inspect(folder)
    assert code == 1
    found = as_json(folder)
    faults = {each["name"]: each["fault"] for each in found["snapshots"] if each["fault"]}
    reasons = ("tokens", "truncated", "not_regular", "not_regular", "magic", "not_regular")
    assert faults == dict(zip(names, reasons))
    assert (found["unusable"], found["temporary"], found["others"]) == (6, 1, 1)
    for line in ("6 of no use", "1 being written", "1 not ours"):
        assert line in text.splitlines()
    assert sum(row.endswith("not_regular") for row in text.splitlines()) == 3


def test_names_cannot_steer_a_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    cache, model = make("dense", disk=folder, fingerprint="weights\x1b]0;x\x07")
    go_on(cache, model, words(1, 5), "a\x1b[2Jb\nc")
    assert cache.flush()
    cache.close()
    _, text = inspect(folder)
    assert "\x1b" not in text and "\x07" not in text
    assert "a\\x1b[2Jb\\nc" in text


def test_a_saved_cache(tmp_path: Path) -> None:
    cache, model = make("dense")
    for namespace, text in conversations():
        go_on(cache, model, text, namespace)
    cache.save(tmp_path / "saved")
    found = as_json(tmp_path / "saved")
    assert found["tokens"] == cache.stats()["tokens"]
    assert found["namespaces"] == 2
    assert found["points"] == 0
    cache.close()


def test_empty_and_wrong_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(tmp_path) == (0, "0 snapshots, 0 tokens, 0 restore points, 0 B, 0 namespaces\n")
    (tmp_path / "file").write_text("")
    for wrong in ("nothing", "file"):
        assert inspect(tmp_path / wrong) == (1, "")
        assert "allowed a folder that kvtrie writes to" in capsys.readouterr().err


def test_as_a_command(folder: Path) -> None:
    ended = run_python("-m", "kvtrie", "inspect", folder, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["files"] == len(os.listdir(folder)) - 1

"""The process that compiles behind the first step: what it leaves, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Optional

import pytest

import kvtrie as kv
from gguf_files import Kind, random_blocks, rewrite, write
from processes import PATIENCE, run_python
from reference_llama import random_llama

WORKER = Path(__file__).with_name("helper_worker.py")


@pytest.fixture(autouse=True)
def _only_pocl(device: Any) -> None:
    if "Portable Computing Language" not in device.platform:
        pytest.skip("other drivers compile a kernel with its program, in no time that matters")
    if device.kind != "cpu":
        pytest.skip("steps are replayed on CPU devices only")


def environment(folder: Path) -> dict[str, str]:
    """Our cache is empty; the driver's is not, or each test would compile for half a minute."""
    return {"KVTRIE_CACHE_DIR": str(folder / "kvtrie"), "KVTRIE_HELPER": "1"}


def run(what: str, folder: Path, **changes: str) -> dict[str, Any]:
    done = run_python(WORKER, what, environment={**environment(folder), **changes})
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def gone(pid: int) -> bool:
    """Whether the process ends while anybody has patience; where nothing reaps orphans, as in many containers, it stays
    as a zombie."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state.startswith("Z"):
            return True
        time.sleep(0.05)
    return False


def files(folder: Path) -> dict[str, int]:
    """Every file of ours and when it was written; temporary ones are none of them."""
    found = {path.name: path.stat().st_mtime_ns for path in (folder / "kvtrie").iterdir()}
    assert not [name for name in found if name.endswith(".new")]
    return found


def marked(folder: Path) -> bool:
    return any(name.startswith("models-") and "." not in name for name in files(folder))


@pytest.mark.soak
def test_steps_have_the_same_bits_before_and_after_and_the_next_start_compiles_nothing(tmp_path: Path) -> None:
    first = run("follow", tmp_path)
    assert first["same"] and first["started"] and first["replays"] > 0
    assert first["zombies"] == []
    assert marked(tmp_path)
    before = files(tmp_path)
    second = run("follow", tmp_path)
    assert second["same"] and not second["started"] and second["replays"] > 0
    assert files(tmp_path) == before


@pytest.mark.soak
def test_weights_as_a_file_stores_them(tmp_path: Path) -> None:
    """Of several kinds, the same in no two layers: the helper compiles for each."""
    raw, weights = random_llama(6, hidden=256, heads=4, kv_heads=2, intermediate=256, vocab=128, tied=True)
    path = write(kv.models.Llama.parse_config(raw), weights, tmp_path / "model.gguf", "q4_0")

    def change(_: Any, tensors: dict[str, Any]) -> None:
        for name, kind in (("token_embd", "Q8_0"), ("blk.1.attn_v", "Q6_K"), ("blk.1.ffn_down", "Q4_K")):
            rows = tensors[f"{name}.weight"][0].shape[0]
            tensors[f"{name}.weight"] = (random_blocks(Kind[kind], rows, 256, 1), Kind[kind])

    rewrite(path, change)
    first = run("follow", tmp_path, HELPER_MODEL=str(path))
    assert first["same"] and first["started"] and first["replays"] > 0
    before = files(tmp_path)
    second = run("follow", tmp_path, HELPER_MODEL=str(path))
    assert second["same"] and not second["started"] and second["replays"] > 0
    assert files(tmp_path) == before


@pytest.mark.ci
def test_it_ends_with_the_interpreter_and_the_next_one_goes_on(tmp_path: Path) -> None:
    assert gone(run("leave", tmp_path)["pid"])
    assert run("follow", tmp_path)["same"] and marked(tmp_path)


def test_it_ends_when_the_process_is_killed(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, str(WORKER), "stay"]
    given = {**os.environ, **environment(tmp_path), "PYTHONPATH": path}
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid: Optional[int] = json.loads(child.stdout.readline())["pid"]
        child.kill()
    assert pid is not None and gone(pid)


@pytest.mark.ci
def test_a_killed_helper_is_no_loss(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, str(WORKER), "follow"]
    given = {**os.environ, **environment(tmp_path), "PYTHONPATH": path}
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        helper = _child_of(child.pid)
        with contextlib.suppress(ProcessLookupError):  # it was quicker
            os.kill(helper, signal.SIGKILL)
        out, err = child.communicate(timeout=PATIENCE)
    assert err == ""
    found = json.loads(out)
    assert found["same"] and found["replays"] > 0 and found["zombies"] == []
    assert run("follow", tmp_path)["same"] and marked(tmp_path)


def _child_of(pid: int) -> int:
    """Its helper, as soon as it has one; compilers that drivers start are others."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # threads and compilers end meanwhile
                for one in (task / "children").read_text(encoding="ascii").split():
                    if "kvtrie.models.helper" in Path(f"/proc/{one}/cmdline").read_text(encoding="utf-8"):
                        return int(one)
        time.sleep(0.01)
    raise AssertionError("no helper came")


@pytest.mark.ci
def test_two_processes_at_once(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, str(WORKER), "follow"]
    given = {**os.environ, **environment(tmp_path), "PYTHONPATH": path}
    both = [subprocess.Popen(command, env=given, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    for one in both:
        out, err = one.communicate(timeout=PATIENCE)
        assert (one.returncode, err) == (0, "")
        assert json.loads(out)["same"]
    assert marked(tmp_path)


@pytest.mark.ci
def test_a_cache_closed_meanwhile(tmp_path: Path) -> None:
    assert gone(run("close", tmp_path)["pid"])


@pytest.mark.ci
@pytest.mark.parametrize("changes", [{"KVTRIE_CACHE_DIR": "/dev/null/none"}, {"KVTRIE_HELPER": "0"}])
def test_without_a_helper_all_is_compiled_before_the_first_step(tmp_path: Path, changes: dict[str, str]) -> None:
    found = run("follow", tmp_path, **changes)
    assert found["same"] and not found["started"] and found["replays"] > 0

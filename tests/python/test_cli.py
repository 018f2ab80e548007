"""The command line, in process: text and exit codes. The chat has tests of its own."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from kvtrie import _health
from kvtrie.cli import build_parser, doctor, main
from kvtrie.models.base import DTYPES
from processes import PATIENCE, run_python


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
    monkeypatch.setattr(_health, "needed_libraries", lambda: [("libabsent.so.9", "libabsent9", "a test")])
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    code, text = run("doctor", "--quick")
    assert code == 1
    assert "apt-get install libabsent9" in text and f"no .icd file in {tmp_path}" in text


def test_doctor_counts_programs_while_others_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler's file may be listed, be there for one question, and be gone at the next."""
    folder = tmp_path / "kvtrie"
    (folder / "within").mkdir(parents=True)
    monkeypatch.setenv("KVTRIE_CACHE_DIR", str(folder))
    for name in ("program", "within/program", "passing"):
        (folder / name).write_bytes(bytes(400))
    stat = os.stat

    def asked(path: Any, *arguments: Any, **options: Any) -> Any:
        found = stat(path, *arguments, **options)
        if str(path).endswith("passing"):
            os.unlink(path)
        return found

    def gone(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith("passing"):
            os.unlink(path)
        return stat(path, *arguments, **{**options, "follow_symlinks": False})

    monkeypatch.setattr(os, "stat", asked)
    monkeypatch.setattr(os, "lstat", gone)
    assert doctor._program_cache().detail.endswith(": 2 files, 800 B")
    assert not (folder / "passing").exists()


def test_wrong_command_is_exit_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["dance"])
    assert error.value.code == 2


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


EXTRAS = ("gguf", "huggingface_hub", "jinja2", "prompt_toolkit", "safetensors", "tokenizers", "tqdm", "uvicorn")


def test_the_command_line_needs_no_package_of_an_extra() -> None:
    """Else `doctor` could not say which one is missing."""
    done = run_python("-c", f"import sys; sys.modules.update(dict.fromkeys({EXTRAS})); import kvtrie.cli")
    assert (done.returncode, done.stderr) == (0, "")


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
    with pytest.raises(kv.errors.NotSupportedError, match="device"):
        kv.ops.vector_width("host")


def test_doctor_shows_what_multiplies_integers() -> None:
    code, text = run("doctor")
    units = [kv.ops.integer_units(device) for device in kv.devices()]
    lines = [line for line in text.splitlines() if "integer units" in line]
    assert code == 0 and set(units) <= {"none", "vnni", "amx"}
    assert [("float32" if each == "none" else each) in line for each, line in zip(units, lines, strict=True)]
    with pytest.raises(kv.errors.NotSupportedError, match=r"integer_units.*device"):
        kv.ops.integer_units("host")


def test_the_chat_offers_every_way_to_keep_weights() -> None:
    for dtype in DTYPES:
        assert build_parser().parse_args(["chat", "tiny", "--dtype", dtype]).dtype == dtype
    with pytest.raises(SystemExit):
        build_parser().parse_args(["chat", "tiny", "--dtype", "q3_0"])

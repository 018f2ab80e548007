"""Where the library runs: without a home, in folders of others or none that it can write, on a share of processors."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Any, NoReturn, Optional

import pytest

import kvtrie as kv
from kvtrie import _folders, _kept, _paths, _processors
from kvtrie.cli import doctor, main
from kvtrie.models import download
from kvtrie.serve import state
from processes import ROOT, run_python

NAMES = ("HOME", "XDG_CACHE_HOME", "KVTRIE_CACHE_DIR", "KVTRIE_MODELS_DIR", "POCL_CACHE_DIR", "TMPDIR")


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user id without an entry, without HOME, in a folder of its own."""

    def no_entry(user: int) -> NoReturn:
        raise KeyError(user)

    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [None, "", "~", "relative", "~/x"])
def test_a_home_is_an_absolute_path_or_none(homeless: Path, monkeypatch: pytest.MonkeyPatch, named: Any) -> None:
    if named is not None:
        monkeypatch.setenv("HOME", named)
        monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert _folders.home() is None and _folders.cache_base() is None
    assert _kept.cache_place() is None and _kept.cache_folder() == ""
    assert download.models_folder() is None and state.default_folder("f" * 64) is None
    assert state.own_place("f" * 64) == (None, "there is no home for it")
    assert list(homeless.iterdir()) == []


def test_variables_with_a_tilde_mean_the_home(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRIE_CACHE_DIR", "~/cache")
    monkeypatch.setenv("KVTRIE_MODELS_DIR", "~/models")
    assert _kept.cache_place() is None and download.models_folder() is None
    monkeypatch.setenv("HOME", str(homeless))
    assert _kept.cache_place() == homeless / "cache" and download.models_folder() == homeless / "models"
    assert _paths.path_text("~/x", "here") == str(homeless / "x") and _paths.path_text("~", "here") == str(homeless)
    assert _paths.path_text("~x/y", "here") == "~x/y"
    assert [each.name for each in homeless.iterdir()] == []


def test_a_path_with_a_tilde_is_refused_without_a_home(homeless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for call in (kv.models.load, kv.models.load_tokenizer, kv.models.describe):
        with pytest.raises(kv.errors.ArgumentError, match=r"got '~/x' and no home, allowed an absolute path, or HOME"):
            call("~/x")
    for command in (
        ["serve", "tiny", "--disk", "~/x"],
        ["serve", "tiny", "--keys", "~/x"],
        ["download", "--to", "~/x"],
    ):
        assert main(command) == 1
        assert "got '~/x' and no home" in capsys.readouterr().err
    assert list(homeless.iterdir()) == []


def test_state_is_kept_in_folders_of_this_user_alone(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(homeless / "cache"))
    folder, why = state.own_place("f" * 64)
    assert (folder, why) == (homeless / "cache/kvtrie/serve" / ("f" * 32), "")
    folder.mkdir()
    assert state.own_place("f" * 64) == (folder, "")
    folder.chmod(0o777)
    assert state.own_place("f" * 64) == (None, f"others may write to {folder}")
    folder.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    found, why = state.own_place("f" * 64)
    assert found is None and "belongs to user" in why and "this is user 12345" in why
    folder.rmdir()
    folder.write_text("x")
    assert state.own_place("f" * 64)[0] is None


def test_a_file_where_a_folder_would_be_is_a_reason(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (homeless / "cache").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(homeless / "cache"))
    folder, why = state.own_place("f" * 64)
    assert folder is None and str(homeless / "cache") in why
    assert "is no folder" in _folders.why_not(homeless / "cache" / "x") or "Not a directory" in why


def test_pocl_gets_a_folder_where_its_own_is_not_to_be_had(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(homeless))
    _folders.prepare()
    place = homeless / f"kvtrie-{os.getuid()}"
    assert os.environ["POCL_CACHE_DIR"] == str(place) and place.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("POCL_CACHE_DIR", "named")
    _folders.prepare()
    assert os.environ["POCL_CACHE_DIR"] == "named"
    monkeypatch.delenv("POCL_CACHE_DIR")
    place.chmod(0o777)  # others may have put programs there
    _folders.prepare()
    assert os.environ.get("POCL_CACHE_DIR") != str(place)
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(homeless))
    _folders.prepare()
    assert "POCL_CACHE_DIR" not in os.environ


def test_doctor_says_what_is_missing(homeless: Path) -> None:
    found = {each.what: each for each in [doctor._processors(), *doctor._places()]}
    assert found["home"].state == found["state of serve"].state == "note"
    assert "--disk FOLDER" in found["state of serve"].advice
    os.environ["HOME"] = str(homeless)
    try:
        assert [each.detail for each in doctor._places()] == [str(homeless / ".cache/kvtrie/serve")]
    finally:
        del os.environ["HOME"]


STRANGER = ("setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups")


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
@pytest.mark.parametrize("mode", [0o555, pytest.param(0o777, marks=pytest.mark.ci)])
def test_a_stranger_has_a_device_and_no_traceback(mode: int) -> None:
    """As OpenShift starts containers: an id that nobody knows, no HOME. The package is where others can read it."""
    place = Path("/tmp", f"kvtrie-stranger-{os.getpid()}-{mode:o}")
    place.mkdir()
    try:
        place.chmod(mode)
        without: dict[str, Optional[str]] = dict.fromkeys([*NAMES, "PYTHONHOME"])
        if not _readable():
            pytest.skip("the package lies where others cannot read it")
        done = run_python("-m", "kvtrie", "doctor", "--quick", before=STRANGER, environment=without, cwd=place)
        assert done.returncode == 0, done.stdout + done.stderr
        asked = run_python(
            "-m", "kvtrie", "serve", "tiny", "--disk", "state/x", "--context", "1",
            before=STRANGER, environment=without, cwd=place,
        )  # fmt: skip
        assert asked.returncode == 1 and "Traceback" not in asked.stderr and "--context: got 1" in asked.stderr
        assert list(place.iterdir()) == []
    finally:
        shutil.rmtree(place)
        shutil.rmtree("/tmp/kvtrie-12345", ignore_errors=True)


def _readable() -> bool:
    return run_python("-c", f"open({str(ROOT / 'README.md')!r})", before=STRANGER).returncode == 0


# --- processors -------------------------------------------------------------------------------------------------------

V2 = "0::/app/one\n"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "9:name=systemd:/\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n"
V1_MOUNT = "33 23 0:28 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"


def machine(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"app/one/cpu.max": "max 100000\n"}, None),
        ({"app/one/cpu.max": "150000 100000\n"}, 1.5),
        ({"app/cpu.max": "200000 100000\n", "app/one/cpu.max": "max 100000\n"}, 2.0),
        ({"app/cpu.max": "50000 100000\n", "app/one/cpu.max": "400000 100000\n"}, 0.5),
        ({"cpu.max": "300000 100000\n"}, 3.0),  # a container that sees its own group as the root
        ({"app/one/cpu.max": "nonsense\n"}, None),
        ({"app/one/cpu.max": "100000 0\n"}, None),
    ],
)
def test_quotas_of_version_2(tmp_path: Path, files: dict[str, str], quota: Optional[float]) -> None:
    assert _processors.quota(machine(tmp_path, V2, V2_MOUNT, files)) == quota


@pytest.mark.parametrize(("given", "quota"), [("-1", None), ("250000", 2.5)])
@pytest.mark.parametrize("top", ["/", "/docker/abc", "/elsewhere"])
def test_quotas_of_version_1(tmp_path: Path, given: str, quota: Optional[float], top: str) -> None:
    """``top``: the group that is mounted; a container may see its own only."""
    below = "docker/abc/" if top == "/" else ""
    group = f"cpu,cpuacct/{below}"
    files = {f"{group}cpu.cfs_quota_us": f"{given}\n", f"{group}cpu.cfs_period_us": "100000\n"}
    hybrid = V1 + "0::/\n", V1_MOUNT.format(top=top) + V2_MOUNT.replace("cgroup rw", "unified rw")
    assert _processors.quota(machine(tmp_path, *hybrid, files)) == quota


def test_a_machine_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert _processors.quota(tmp_path) is None
    assert _processors.granted(tmp_path) == (None, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("quota", "bound", "threads"), [(None, 8, 8), (0.25, 8, 1), (1.5, 8, 2), (2.0, 8, 2), (16.0, 8, 8), (0.0, 1, 1)]
)
def test_threads_are_what_is_granted_rounded_up(quota: Optional[float], bound: int, threads: int) -> None:
    assert _processors.Granted(quota, bound).threads == threads


def test_what_the_environment_says_is_left_alone() -> None:
    told = _processors.told(2, {})
    assert set(told.values()) == {"2"} and set(told) == {name for names in _processors.VARIABLES for name in names}
    told = _processors.told(2, {"POCL_MAX_PTHREAD_COUNT": "7", "RAYON_NUM_THREADS": ""})
    assert set(told) == {"DPCPP_CPU_NUM_CUS", "RAYON_NUM_THREADS"}


BOUND = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.cpu_count = lambda: 64
import kvtrie
print(*(os.environ.get(name) for names in kvtrie._processors.VARIABLES for name in names))
"""


def test_drivers_are_told_before_they_are_loaded() -> None:
    names = [name for names in _processors.VARIABLES for name in names]
    done = run_python("-c", BOUND, environment=dict.fromkeys(names))
    assert done.stdout.split() == ["1"] * len(names), done.stderr
    done = run_python("-c", BOUND, environment={**dict.fromkeys(names), "POCL_MAX_PTHREAD_COUNT": "3"})
    assert done.stdout.split()[:2] == ["3", "None"]

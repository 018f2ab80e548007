"""The notebooks: each runs as a newcomer runs it, and gives the kinds of outputs that are stored with it.

    KVTRIE_STORE_NOTEBOOKS=true pytest tests/python/test_notebooks.py

writes the outputs of the run into the notebooks, with the pictures that they make. `first_steps.ipynb` is stored
without outputs, for people to fill.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from traitlets.config import Config

from processes import PATIENCE, PYTHON_PATH

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
FIRST = FOLDER / "first_steps.ipynb"
STORED = sorted(set(FOLDER.glob("*.ipynb")) - {FIRST})
STORE = os.environ.get("KVTRIE_STORE_NOTEBOOKS") == "true"

WIDGET = "application/vnd.jupyter.widget-view+json"


QUICK = ("sharing",)  # played by ./dev test, as the first one is


@pytest.fixture(
    params=[pytest.param(path, marks=[] if path.stem in QUICK else pytest.mark.ci, id=path.stem) for path in STORED]
)
def stored(request: pytest.FixtureRequest) -> tuple[Path, Any]:
    return request.param, nbformat.read(request.param, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Any) -> Iterator[Any]:
    for cell in code_cells(notebook):
        yield from cell.outputs


def sources(notebook: Any) -> str:
    """A digest of all code: what the stored outputs were made from."""
    code = "\0".join(cell.source for cell in code_cells(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def text_of(output: Any) -> str:
    return "".join(output.get("text", "")) + "".join(map(str, output.get("data", {}).values()))


def executed(path: Path) -> Any:
    """The notebook with the outputs of a run, in a kernel of its own, in the folder where it lies.

    Sockets of a folder of its own: of ports that are free somebody else may take one before the kernel does.
    """
    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PYTHON_PATH[:1]), "MPLBACKEND": INLINE}
    with tempfile.TemporaryDirectory() as folder:
        sockets = {"transport": "ipc", "ip": f"{folder}/kernel", "connection_file": f"{folder}/kernel.json"}
        client = nbclient.NotebookClient(
            notebook,
            config=Config({"KernelManager": sockets}),
            kernel_name="python3",
            timeout=int(PATIENCE),
            startup_timeout=int(PATIENCE),
            iopub_timeout=int(PATIENCE),  # outputs that are late belong to their cell as well
            record_timing=False,
            coalesce_streams=True,  # a kernel sends what is printed whenever it likes
            resources={"metadata": {"path": str(path.parent)}},
        )
        client.execute(env=environment)
    return notebook


INLINE = "module://matplotlib_inline.backend_inline"


def cleaned(notebook: Any) -> Any:
    """As it is stored: widgets have no kernel there, and their picture stands for them."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["kvtrie"] = {"sources": sources(notebook)}
    for output in outputs(notebook):
        output.get("data", {}).pop(WIDGET, None)
    for number, cell in enumerate(code_cells(notebook), 1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
    return notebook


def written(notebook: Any) -> str:
    return str(nbformat.writes(notebook, indent=1, ensure_ascii=False)) + "\n"


def test_a_newcomer_can_run_it(stored: tuple[Path, Any]) -> None:
    """Each cell runs, in its own assertions nothing fails, and as many pictures come as are stored."""
    path, before = stored
    notebook = cleaned(executed(path))
    for output in outputs(notebook):
        assert output.output_type != "error" and output.get("name") != "stderr", text_of(output)
    if STORE:
        path.write_text(written(notebook), encoding="utf-8")
        return
    for was, now in zip(code_cells(before), code_cells(notebook)):
        assert kinds(was) == kinds(now), now.source


def kinds(cell: Any) -> list[tuple[str, ...]]:
    """What a cell gives: the types of its outputs, and how each can be shown."""
    return [(output.output_type, *sorted(output.get("data", {}))) for output in cell.outputs]


def test_the_first_one_runs_and_draws() -> None:
    found = list(outputs(executed(FIRST)))
    assert sum("<svg" in text_of(output) for output in found) >= 2
    printed = "".join(output["text"] for output in found if output.output_type == "stream")
    assert "B: reused 60 of 63 from the device" in printed
    assert "tier host" in printed

"""The side of a watched cache that a browser sees: a widget of anywidget. Importing it needs ``kvtrie[notebooks]``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anywidget
import comm
import traitlets

_FOLDER = Path(__file__).parent / "page"


class Front(anywidget.AnyWidget):
    """``state``: the newest picture. A page that opens later, or once more, begins with it. One thread at a time."""

    _esm = _FOLDER / "watch.js"
    _css = _FOLDER / "watch.css"
    state = traitlets.Dict().tag(sync=True)

    def show(self, picture: dict[str, object]) -> None:
        """The next picture. Settings that it does not name stay as they were."""
        self.state = {**self.state, **picture}

    def heard(self) -> None:
        """Answers a page, so that it asks once more only when a kernel that is busy has answered."""
        self.send({"kind": "heard"})

    def view(self) -> dict[str, object]:
        """The MIME bundle by which a notebook shows it."""
        made = super()._repr_mimebundle_()
        return dict(made[0] if isinstance(made, tuple) else made or {})

    @property
    def connected(self) -> bool:
        """Whether it belongs to a kernel: elsewhere nothing that it sends arrives anywhere."""
        return self.comm is not None and not isinstance(self.comm, comm.DummyComm)


def open_front(hear: Callable[[object], None], gone: Callable[[], None]) -> Front:
    """A widget that hands what pages say to ``hear``, and calls ``gone`` when a front end deletes it."""
    front = Front()
    front.on_msg(lambda _, content, __: hear(content))
    if front.comm is not None:
        front.comm.on_close(lambda _: gone())
    return front

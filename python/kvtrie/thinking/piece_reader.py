"""Text that is cut into pieces of two kinds, which do not depend on how it came.

Threads: a reader belongs to one answer.
"""

from __future__ import annotations

from typing import Literal

Piece = tuple[Literal["reasoning", "text"], str]


class PieceReader:
    """``_held`` is what came and is not certain yet, ``_place`` where in the answer it stands. ``_advance`` takes from
    its beginning what is certain, or what is left where it is ``final``, and may move to another place; it is called
    until it does neither."""

    _place: object

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> list[Piece]:
        """The parts that are certain by now, in order."""
        self._held += text
        return self._pieces(final=False)

    def finish(self) -> list[Piece]:
        """The rest: nothing more comes."""
        return self._pieces(final=True)

    def _pieces(self, final: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while True:
            before = (self._place, len(self._held))
            piece = self._advance(final)
            if piece is not None and piece[1]:
                pieces.append(piece)
            if (self._place, len(self._held)) == before:
                return pieces

    def _advance(self, final: bool) -> Piece | None:
        raise NotImplementedError

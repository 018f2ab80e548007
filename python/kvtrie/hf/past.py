"""A transformers ``Cache`` over kvtrie sessions, one for each row of the batch.

A pass of the decoder goes: its rows are opened where this is the first one, and what the tree knows of the prompt is
left out of the pass; it runs, in pieces where states are wanted inside it; what it computed goes to the sessions, and
each step is published. A pass that fails, however far it came, leaves the layers and the rows as they were.

K and V of one session are all of one state of the model (states.py). Where the model is in another than at the last
pass, an adapter having been switched for example, the tokens so far are looked up and computed again in the new one.

Columns are those of the tensors of the batch, padding included: a row has ``columns`` - ``pad`` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from transformers import cache_utils as hf
from transformers.utils import ModelOutput
from typing_extensions import Self

from .._live import Live
from ..errors import ArgumentError, BusyError, ClosedError, NotSupported
from .cells import Cells
from .copying import Copying
from .forward import Forward, Passes
from .inputs import Asked, Inputs
from .opening import open_rows
from .row import Row
from .states import State

if TYPE_CHECKING:
    from .cache import Cache


class Past(Live, hf.Cache, Passes):
    """The cache of one conversation, or of a batch of them, for ``model``; from :meth:`kvtrie.hf.Cache.session`.

    Use it as any cache of transformers: in ``generate``, in a pipeline, in loops over ``model(...)``. The first pass
    takes the whole prompt or what remains of it; what comes out is of the tokens that were computed, its last ones.
    It goes on from call to call. ``copy.copy`` and ``copy.deepcopy`` make a branch. One thread at a time: a second one
    gets ``BusyError``.
    """

    is_compileable = False

    def __init__(self, cache: Cache, namespace: str) -> None:
        self.cache = cache
        self.form: Copying | Cells = cache.form
        self.columns: int = 0
        """Columns that are computed."""
        self.reused: int = 0
        """Columns that were not computed here, since they were known."""
        self.state: State = cache.states.current()
        super().__init__(layers=self.form.make_layers(self))
        self._namespace = namespace
        self._busy = False
        self._closed = False
        self._prompts: list[list[int]] | None = None  # given to `session`, and not yet to the model
        self._width = 0  # columns of the first pass, or of what was given to `session`
        self._plain = True  # whether K and V so far follow from the tokens, whatever the state of the model
        self.asked = Asked()
        self.rows: list[Row] = []

    @property
    def remaining(self) -> torch.Tensor:
        """Token ids [batch, n] of the prompt given to ``session`` that are still to be computed."""
        width = self._width - self.columns
        rest = [ids[-width:] if width else [] for ids in self._prompts or ()]
        return torch.tensor([[0] * (width - len(ids)) + ids for ids in rest], dtype=torch.long)

    @property
    def tokens(self) -> list[list[int]]:
        """Token ids of each row that are computed, without padding."""
        return [list(row.tokens) for row in self.rows]

    @property
    def namespace(self) -> str:
        """Where ``cache.prefix_cache`` has what the session knows: the one given to ``session``, or, after the model
        has changed since the cache was made, one that belongs to its state."""
        return self.state.namespace(self._namespace)

    @property
    def why(self) -> list[str | None]:
        """For each row, why what it computes is kept no longer, or None."""
        return [row.why for row in self.rows]

    def branch(self) -> Past:
        """A second one that goes on by itself from the same place. No K or V is copied."""
        with self._call("branch"):
            twin = Past(self.cache, self._namespace)
            twin.form, twin.state, twin._plain = self.form, self.state, self._plain
            twin.layers = self.form.copied(self.layers, twin)
            twin.rows = [row.branch() for row in self.rows]
            twin._prompts, twin._width = self._prompts, self._width
            twin.columns, twin.reused = self.columns, self.reused
            return twin

    def __copy__(self) -> Past:
        return self.branch()

    def __deepcopy__(self, memo: dict[int, object]) -> Past:
        return self.branch()

    def close(self) -> None:
        """Gives its sessions back; what was computed stays in the tree. Without this, the last reference does it."""
        self._closed = True
        for row in self.rows:
            row.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvtrie.hf.Past {len(self.rows)} rows, {self.columns} columns{', closed' if self._closed else ''}>"

    # ---- a pass ------------------------------------------------------------------------------------------------------

    def open(self, prompts: Sequence[Sequence[int]], width: int, least: int = 0) -> None:
        """Opens a row for each prompt, the longest of ``width`` tokens. What is known of them is in the layers then, of
        the last ``least`` columns nothing."""
        rows, columns = open_rows(self.cache, prompts, width, self.state, self.namespace, least)
        self.rows, self.columns = rows, columns
        try:
            if columns:
                self.form.fill(self, width)
            lost = next((row.why for row in rows if row.why), None)
            if lost and isinstance(self.form, Cells):
                self.fall_back(lost)
        except BaseException:
            for row in rows:
                row.close()
            self.rows, self.columns = [], 0
            raise
        self.reused, self._width = columns, width

    def fall_back(self, why: str) -> None:
        """Goes on with tensors of its own, and keeps nothing of what follows."""
        if isinstance(self.form, Cells):
            self.form = Copying()
            self.layers = self.form.make_layers(self)
            if self.columns:
                self.form.fill(self, self.columns)
        for row in self.rows:
            row.forget(why)

    def expect(self, prompts: list[list[int]], width: int) -> None:
        """Opens the rows before the model is given their tokens."""
        with self._call("session"):
            self._follow(self.cache.states.current(thorough=True))
            self.open(prompts, width)
            self._prompts = prompts

    def forward(self, call: Forward, inputs: Inputs) -> ModelOutput:
        """One pass of the decoder over ``inputs``."""
        with self._call("forward"):
            if call.module is not self.cache.decoder:
                raise ArgumentError("[hf] cache: got a session of another model's cache, allowed one of this model's")
            fresh, prompts = not self.rows, self._prompts
            try:
                return self._forward(call, inputs)
            except BaseException:
                self._prompts = prompts
                if fresh:
                    self._clear()
                raise

    def _forward(self, call: Forward, inputs: Inputs) -> ModelOutput:
        state = self.cache.states.current(thorough=not self.rows)
        if state is not self.state:
            self._change(call, inputs, state)
        inputs = self._unknown(inputs, self.asked.joined(inputs.asked(call.module)))
        if inputs.size[0] != len(self.rows):
            self._widen(inputs.size[0])
        odd = inputs.objection([row.pad for row in self.rows], self.columns)
        self._plain = self._plain and odd is None
        why = state.why or odd or self._too_long(self.columns + inputs.size[1], min(row.pad for row in self.rows))
        why = why or self.form.objection(self)
        if why:
            self.fall_back(why)
        self.form.expect(self, self._ids(inputs))
        return self._pass(call, self._parts(inputs))

    def _too_long(self, columns: int, pad: int) -> str | None:
        most = self.state.longest
        if most is None or columns - pad <= most:
            return None
        return f"rotary frequencies that change with the length of the text: {columns - pad} tokens, kept up to {most}"

    def _unknown(self, inputs: Inputs, asked: Asked) -> Inputs:
        """Opens the rows where this is the first pass; returns what of it is to be computed."""
        width = inputs.size[1]
        if not self.rows:
            self._open_first(inputs, asked)
            return inputs.part(self.columns, width, 0) if self.columns else inputs
        prompts, self._prompts = self._prompts, None
        if not self.columns:
            return inputs
        begins = not self.cache.layout.attention and self._begins_with_itself(inputs)
        if not begins and (prompts is None or not self._is_whole(inputs)):
            return inputs
        same = begins or self._is_announced(inputs, prompts or [])
        if asked.beyond(width - self.columns) or not same or inputs.objection([row.pad for row in self.rows], 0):
            self._clear()
            self._open_first(inputs, asked)
        return inputs.part(self.columns, width, 0) if self.columns else inputs

    def _is_whole(self, inputs: Inputs) -> bool:
        """Whether a first pass is as long as what was given to ``session``, of which more than nothing is known."""
        mask = inputs.arguments.get("attention_mask")
        long = not isinstance(mask, torch.Tensor) or mask.shape[-1] == self._width
        return long and inputs.size[1] == self._width

    def _is_announced(self, inputs: Inputs, prompts: list[list[int]]) -> bool:
        """Whether its tokens are those that were given to ``session``, each row as often as the batch has it."""
        found = [inputs.real(row) for row in range(inputs.size[0])]
        return found == (prompts * len(found) if len(prompts) == 1 else prompts)

    # ---- the model is in another state than at the last pass ---------------------------------------------------------

    def _follow(self, state: State) -> None:
        """REQUIRES: no rows."""
        if state is not self.state:
            self.state = state
            self.layers = self.form.make_layers(self)

    def _change(self, call: Forward, inputs: Inputs, state: State) -> None:
        """Looks the tokens so far up in the new state, and computes what is not known. All of it, or nothing."""
        if not self.rows:
            return self._follow(state)
        if not self._plain or not (self._prompts or all(row.tokens for row in self.rows)):
            raise NotSupported(
                "[hf] forward: got a model that computes something else than in the pass before, and a session whose K "
                "and V do not follow from its tokens, allowed a new session"
            )
        held = (self.rows, self.layers, self.form, self.columns, self.reused, self.state, self._prompts, self._width)
        self.rows, self.form, self.columns, self.state = [], self.cache.form, 0, state
        self.layers = self.form.make_layers(self)
        try:
            self._compute_again(call, inputs, held[0], held[3])
        except BaseException:
            for row in self.rows:
                row.close()
            self.rows, self.layers, self.form, self.columns, self.reused, self.state, self._prompts, self._width = held
            raise
        self._prompts, self._width = held[6:]
        for row in held[0]:
            row.close()

    def _compute_again(self, call: Forward, inputs: Inputs, rows: list[Row], columns: int) -> None:
        if columns == 0:  # nothing was known of what `session` was given
            self.open(self._prompts or [row.tokens for row in rows], self._width)
            return
        self.open([row.tokens for row in rows], columns)
        known = Inputs.of_tokens(inputs, [list(row.tokens) for row in rows], [row.pad for row in rows])
        why = self._too_long(columns, min(row.pad for row in rows)) or self.form.objection(self)
        if why:
            self.fall_back(why)
        rest = known.part(self.columns, columns, 0)
        self.form.expect(self, self._ids(rest))
        self._pass(call, self._parts(rest))

    def _begins_with_itself(self, inputs: Inputs) -> bool:
        """For models without attention ``generate`` gives the whole text each time, since they have no length."""
        ids = inputs.ids.tolist() if inputs.ids is not None else []
        return len(ids) == len(self.rows) and all(
            len(own) > self.columns > 0 and own[: self.columns] == row.tokens for own, row in zip(ids, self.rows)
        )

    def _open_first(self, inputs: Inputs, asked: Asked) -> None:
        batch, width = inputs.size
        prompts = [inputs.real(row) for row in range(batch)]
        pads = [0 if ids is None else width - len(ids) for ids in prompts]
        why = self.state.why or inputs.objection(pads, 0) or self._too_long(width, min(pads)) or asked.why
        if why is None:
            self.open([ids or [] for ids in prompts], width, asked.rows)
        else:
            self.rows = [Row(None, (), pad, why) for pad in pads]
            self.fall_back(why)

    def _widen(self, batch: int) -> None:
        """``generate`` with beams or several sequences repeats the prompt before it looks at the cache."""
        times, odd = divmod(batch, len(self.rows))
        if odd:
            raise ArgumentError(f"[hf] input_ids: got {batch} rows, allowed {len(self.rows)} or a multiple of it")
        self._take([row for row in range(len(self.rows)) for _ in range(times)])

    def _ids(self, inputs: Inputs) -> list[list[int]]:
        """Token ids of each row in this pass, without padding; zeros where they are not known, which nobody keeps."""
        batch, width = inputs.size
        given = inputs.ids.tolist() if inputs.ids is not None else [[0] * width] * batch
        return [ids[max(0, row.pad - self.columns) :] for ids, row in zip(given, self.rows)]

    def _parts(self, inputs: Inputs) -> list[Inputs]:
        """The pass in pieces, which end where the tree wants states."""
        layout, width = self.cache.layout, inputs.size[1]
        if not layout.states:
            return [inputs]
        end = self.columns + width
        cuts = {row.pad + at - self.columns for row in self.rows for at in row.wanted(end - row.pad)}
        if layout.stepwise:
            cuts |= set(range(1 if self.columns else min(cuts, default=width), width))
        if not cuts or inputs.divisible:
            return inputs.split(sorted(cuts), self.columns)
        if self.reused and layout.stepwise:
            raise NotSupported("[hf] forward: got arguments that keep a pass from being cut, which this model needs")
        self.fall_back("a pass that cannot be cut where states are wanted")
        return [inputs]

    def _pass(self, call: Forward, parts: list[Inputs]) -> ModelOutput:
        columns, lengths = self.columns, [row.length for row in self.rows]
        marked = self.form.mark(self.layers)
        try:
            outputs = [self._piece(call, part) for part in parts]
        except BaseException:
            self.form.go_back(self.layers, marked)
            self.columns = columns
            for row, length in zip(self.rows, lengths):
                del row.tokens[length:]
            raise
        if len(outputs) > 1:
            name = next(iter(outputs[-1]))  # last_hidden_state, or logits where the decoder is the whole model
            outputs[-1][name] = torch.cat([each[name] for each in outputs], dim=1)
        return outputs[-1]

    def _piece(self, call: Forward, inputs: Inputs) -> ModelOutput:
        ids = self._ids(inputs)
        output = self.form.compute(self, ids, lambda: call.original(**inputs.arguments))
        for row, own in zip(self.rows, ids):
            row.tokens += own
        self.columns += inputs.size[1]
        return output

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        if self._closed:
            raise ClosedError(f"[hf] {name}: the session is closed")
        if self._busy:
            raise BusyError(f"[hf] {name}: another call on this session is under way")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    # ---- what transformers does with a cache between passes ----------------------------------------------------------

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i goes on from what row ``beam_idx[i]`` was: as a branch, where several do."""
        with self._call("reorder_cache"):
            self._take([int(row) for row in beam_idx.tolist()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row ``repeats`` times, side by side."""
        with self._call("batch_repeat_interleave"):
            self._take([row for row in range(len(self.rows)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Only the rows ``indices``, in their order."""
        with self._call("batch_select_indices"):
            self._take([int(row) for row in torch.arange(len(self.rows))[indices].tolist()])

    def _take(self, indices: list[int]) -> None:
        if indices == list(range(len(self.rows))):
            return
        self.form.take(self, indices)
        rows = [
            self.rows[row] if row not in indices[:at] else self.rows[row].branch() for at, row in enumerate(indices)
        ]
        for at, row in enumerate(self.rows):
            if at not in indices:
                row.close()
        self.rows = rows

    def crop(self, tokens_to_remove: int) -> None:
        """Goes back by that many tokens, a number of 0 or less. A window has to reach that far: ``NotRestorable``."""
        if tokens_to_remove > 0:
            raise ArgumentError(f"[hf] crop: got {tokens_to_remove} tokens to remove, allowed 0 or a negative number")
        with self._call("crop"):
            marked = self.form.mark(self.layers)
            try:
                self.form.crop(self, tokens_to_remove)
            except BaseException:
                self.form.go_back(self.layers, marked)
                raise
            self.columns = max(0, self.columns + tokens_to_remove)
            for row in self.rows:
                row.rewind(max(0, self.columns - row.pad))

    def reset(self) -> None:
        """As new: the next pass begins with its first token."""
        with self._call("reset"):
            self._prompts, self._width = None, 0
            self._clear()

    def _clear(self) -> None:
        for row in self.rows:
            row.close()
        self.rows, self.columns, self.reused, self._plain = [], 0, 0, True
        self.form = self.cache.form
        self.layers = self.form.make_layers(self)

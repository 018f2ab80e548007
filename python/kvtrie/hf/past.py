"""A transformers ``Cache`` over kvtrie sessions, one for each row of the batch.

A pass of the decoder goes: its rows are opened where this is the first one, and what the tree knows of the prompt is
left out of the pass; it runs, in pieces where states are wanted inside it; what it computed goes to the sessions, and
each step is published. A pass that fails, however far it came, leaves the layers and the rows as they were.

A call builds its changes beside the valid state (place.py), so the next call undoes everything that an exception
leaves, at whatever point. The tokens given to ``generate`` are compared with those of the session: where they do not
begin with them, as when the same call is made again, the session begins anew with what the tree knows.

K and V of one session are all of one state of the model (states.py). Where the model is in another than at the last
pass, an adapter having been switched for example, the tokens so far are looked up and computed again in the new one.

Columns are those of the tensors of the batch, padding included: a row has ``columns`` - ``pad`` tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from transformers.utils import ModelOutput

from ..errors import ArgumentError, NotSupportedError
from .cells import Cells
from .copying import Copying
from .forward import Forward, Passes
from .inputs import NOTHING, Asked, Inputs, text_of_generate
from .opening import open_rows
from .place import Back, Place
from .row import Row
from .standing import Standing
from .states import State

_DEPTH = 64  # calls between a pass and the beginning of ``generate``, at most


class Past(Standing, Passes):
    """The cache of one conversation, or of a batch of them, for ``model``; from :meth:`kvtrie.hf.Cache.session`.

    Use it as any cache of transformers: in ``generate``, in a pipeline, in loops over ``model(...)``. The first pass
    takes the whole prompt or what remains of it; what comes out is of the tokens that were computed, its last ones.
    It goes on from call to call. ``copy.copy`` and ``copy.deepcopy`` make a branch. One thread at a time: a second one
    gets ``BusyError``.
    """

    def branch(self) -> Past:
        """A second one that goes on by itself from the same place. No K or V is copied."""
        with self._turn("branch"):
            self._recover()
            place, twin = self._place, Past(self.cache, self._namespace)
            twin._place = place = place._replace(rows=tuple(row.branch() for row in place.rows), undo=None)
            twin._place = place._replace(layers=place.form.copied(place.layers, twin))
            return twin

    def __copy__(self) -> Past:
        return self.branch()

    def __deepcopy__(self, memo: dict[int, object]) -> Past:
        return self.branch()

    # ---- a pass ------------------------------------------------------------------------------------------------------

    def _open(
        self,
        prompts: Sequence[Sequence[int]],
        width: int,
        *,
        least: int = 0,
        back: Back | None = None,
        announced: list[list[int]] | None = None,
    ) -> None:
        """Opens a row for each prompt, the longest of ``width`` tokens. The known part of them is in the layers then,
        of the last ``least`` columns nothing. REQUIRES: no rows."""
        place = self._place
        rows, columns = open_rows(self.cache, prompts, width, place.state, self.namespace, least)
        try:
            lost = next((row.why for row in rows if row.why), None)
            form = Copying() if lost and isinstance(place.form, Cells) else place.form
            made = Place(
                state=place.state,
                form=form,
                layers=form.make_layers(self, place.state),
                rows=tuple(rows),
                columns=columns,
                reused=columns,
                prompts=announced,
                width=width,
                back=back,
            )
            if columns:
                form.fill(self.cache, made, width)
        except BaseException:
            for row in rows:
                row.close()
            raise
        self._place = made
        if lost and form is not place.form:
            self.fall_back(lost)

    def fall_back(self, why: str) -> None:
        """Goes on with tensors of its own, and keeps nothing of what follows."""
        place = self._place
        if isinstance(place.form, Cells):
            form, back = Copying(), place.back
            made = place._replace(form=form, layers=form.make_layers(self, place.state))
            if place.columns:
                form.fill(self.cache, made, place.columns)
            if back is not None and back.place.rows is place.rows:  # whose cells nobody will hold
                back = Back(back.place._replace(form=form, layers=made.layers), form.mark(made.layers))
            self._place = made._replace(back=back)
        for row in place.rows:
            row.forget(why)

    def expect(self, prompts: list[list[int]], width: int) -> None:
        """Opens the rows before the model is given their tokens."""
        with self._turn("session"):
            self._place = self._new(self.cache.states.current(thorough=True))
            self._open(prompts, width, announced=prompts)

    def forward(self, call: Forward, inputs: Inputs) -> ModelOutput:
        """One pass of the decoder over ``inputs``."""
        with self._turn("forward"):
            self._recover()
            if call.module is not self.cache.decoder:
                raise ArgumentError("[hf] cache: got a session of another model's cache, allowed one of this model's")
            return self._whole(call, inputs)

    def _whole(self, call: Forward, inputs: Inputs) -> ModelOutput:
        try:
            return self._forward(call, inputs)
        finally:
            if self._place.back is not None or self._closed:
                self._recover()

    def settle(self, asked: Asked) -> None:
        undo = self._place.undo
        if undo is not None and undo[0] is asked:
            self._place = self._place._replace(undo=None)

    def take_back(self, asked: Asked) -> None:
        undo = self._place.undo
        if undo is not None and undo[0] is asked and not self._lock.locked():
            with self._lock:
                self._place = self._place._replace(back=undo[1], undo=None)
                self._recover()

    def _forward(self, call: Forward, inputs: Inputs) -> ModelOutput:
        state = self.cache.states.current(thorough=not self._place.rows)
        if state is not self._place.state:
            self._change(call, inputs, state)
        inputs = self._unknown(inputs, self.asked.joined(inputs.asked(call.module)))
        if inputs.size[0] != len(self._place.rows):
            self._widen(inputs.size[0])
        place = self._place
        odd = inputs.objection([row.pad for row in place.rows], place.columns)
        if odd is not None:
            self._place = place = place._replace(plain=False)
        why = state.why or odd or self._too_long(place.columns + inputs.size[1], min(row.pad for row in place.rows))
        why = why or place.form.objection(self)
        if why:
            self.fall_back(why)
        self._place.form.expect(self, self._ids(inputs))
        return self._pass(call, self._parts(inputs))

    def _too_long(self, columns: int, pad: int) -> str | None:
        most = self._place.state.longest
        if most is None or columns - pad <= most:
            return None
        return f"rotary frequencies that change with the length of the text: {columns - pad} tokens, kept up to {most}"

    def _unknown(self, inputs: Inputs, asked: Asked) -> Inputs:
        """The part of a pass that has to be computed. Opens the rows where this is the first one, or begins another
        text."""
        columns, width = self._place.columns, inputs.size[1]
        if self._place.rows:
            known = self._has_begun(inputs, asked) if columns else None
            if known is None:
                return inputs
            if known:
                return inputs.part(columns, width, 0)
            self._clear()
        self._open_first(inputs, asked)
        columns = self._place.columns
        return inputs.part(columns, width, 0) if columns else inputs

    def _has_begun(self, inputs: Inputs, asked: Asked) -> bool | None:
        """Whether a pass has all of a text, which begins with what the session has. None: it has what comes behind."""
        place, width = self._place, inputs.size[1]
        if place.prompts is not None and self._is_whole(inputs):
            same = self._is_announced(inputs, place.prompts) and not asked.beyond(width - place.columns)
            return same and inputs.objection([row.pad for row in place.rows], 0) is None
        text = text_of_generate(self, sys._getframe(), _DEPTH)
        if text is not None and not self._goes_on_to(text):
            return False
        whole = not self.cache.layout.attention or (text is not None and text.size[1] == width)
        return self._goes_on_to(inputs) or None if whole else None

    def _is_whole(self, inputs: Inputs) -> bool:
        """Whether a first pass is as long as what was given to ``session``, of which more than nothing is known."""
        mask = inputs.arguments.get("attention_mask")
        long = not isinstance(mask, torch.Tensor) or mask.shape[-1] == self._place.width
        return long and inputs.size[1] == self._place.width

    def _is_announced(self, inputs: Inputs, prompts: list[list[int]]) -> bool:
        """Whether its tokens are those that were given to ``session``, each row as often as the batch has it."""
        found = [inputs.real(row) for row in range(inputs.size[0])]
        return found == (prompts * len(found) if len(prompts) == 1 else prompts)

    # ---- the model is in another state than at the last pass ---------------------------------------------------------

    def _change(self, call: Forward, inputs: Inputs, state: State) -> None:
        """Looks the tokens so far up in the new state, and computes what is not known. All of it, or nothing."""
        place = self._place
        if not place.rows:
            self._place = self._new(state)
            return
        if not place.plain or not (place.prompts or all(row.tokens for row in place.rows)):
            raise NotSupportedError(
                "[hf] forward: got a model that computes something else than in the pass before, and a session whose K "
                "and V do not follow from its tokens, allowed a new session"
            )
        back = Back(place, [])
        self._place = self._new(state)._replace(back=back)
        if place.columns:
            self._compute_again(call, inputs, place, back)
        else:  # nothing was known of what `session` was given
            self._open(place.prompts or [row.tokens for row in place.rows], place.width, back=back)
        self._place = self._place._replace(prompts=place.prompts, width=place.width, back=None, undo=None)
        for row in place.rows:
            row.close()

    def _compute_again(self, call: Forward, inputs: Inputs, before: Place, back: Back) -> None:
        rows, columns = before.rows, before.columns
        self._open([row.tokens for row in rows], columns, back=back)
        known = Inputs.of_tokens(inputs, [list(row.tokens) for row in rows], [row.pad for row in rows])
        now = self._place
        why = self._too_long(columns, min(row.pad for row in now.rows)) or now.form.objection(self)
        if why:
            self.fall_back(why)
        rest = known.part(now.columns, columns, 0)
        self._place.form.expect(self, self._ids(rest))
        self._compute(call, self._parts(rest))

    def _open_first(self, inputs: Inputs, asked: Asked) -> None:
        place = self._place
        batch, width = inputs.size
        prompts = [inputs.real(row) for row in range(batch)]
        pads = [0 if ids is None else width - len(ids) for ids in prompts]
        why = place.state.why or inputs.objection(pads, 0) or self._too_long(width, min(pads)) or asked.why
        if why is None:
            return self._open([ids or [] for ids in prompts], width, least=asked.rows, back=Back(place, []))
        form = Copying() if isinstance(place.form, Cells) else place.form
        rows = tuple(Row(None, (), pad, why) for pad in pads)
        layers = form.make_layers(self, place.state)
        self._place = Place(place.state, form, layers, rows, width=width, back=Back(place, []))

    def _widen(self, batch: int) -> None:
        """``generate`` with beams or several sequences repeats the prompt before it looks at the cache."""
        count = len(self._place.rows)
        times, odd = divmod(batch, count)
        if odd:
            raise ArgumentError(f"[hf] input_ids: got {batch} rows, allowed {count} or a multiple of it")
        self._take([row for row in range(count) for _ in range(times)])

    def _ids(self, inputs: Inputs) -> list[list[int]]:
        """Token ids of each row in this pass, without padding; zeros where they are not known, which nobody keeps."""
        batch, width = inputs.size
        given = inputs.ids.tolist() if inputs.ids is not None else [[0] * width] * batch
        return [ids[max(0, row.pad - self._place.columns) :] for ids, row in zip(given, self._place.rows)]

    def _parts(self, inputs: Inputs) -> list[Inputs]:
        """The pass in pieces, which end where the tree wants states."""
        layout, width = self.cache.layout, inputs.size[1]
        if not layout.states:
            return [inputs]
        end = self._place.columns + width
        cuts = {row.pad + at - self._place.columns for row in self._place.rows for at in row.wanted(end - row.pad)}
        if layout.stepwise:
            cuts |= set(range(1 if self._place.columns else min(cuts, default=width), width))
        if not cuts or inputs.divisible:
            return inputs.split(sorted(cuts), self._place.columns)
        if self._place.reused and layout.stepwise:
            raise NotSupportedError(
                "[hf] forward: got arguments that keep a pass from being cut, which this model needs"
            )
        self.fall_back("a pass that cannot be cut where states are wanted")
        return [inputs]

    def _pass(self, call: Forward, parts: list[Inputs]) -> ModelOutput:
        """A pass that counts, or does not where it raises."""
        place = self._place
        if place.back is None:
            place = place._replace(undo=None)
            self._place = place._replace(back=Back(place, place.form.mark(place.layers)))
        output = self._compute(call, parts)
        now = self._place
        undo = None if self.asked is NOTHING or now.back is None else (self.asked, now.back)
        self._place = now._replace(prompts=None, back=None, undo=undo)
        return output

    def _compute(self, call: Forward, parts: list[Inputs]) -> ModelOutput:
        outputs = [self._piece(call, part) for part in parts]
        if len(outputs) > 1:
            name = next(iter(outputs[-1]))  # last_hidden_state, or logits where the decoder is the whole model
            outputs[-1][name] = torch.cat([each[name] for each in outputs], dim=1)
        return outputs[-1]

    def _piece(self, call: Forward, inputs: Inputs) -> ModelOutput:
        ids = self._ids(inputs)
        output = self._place.form.compute(self, ids, lambda: call.original(**inputs.arguments))
        now = self._place
        for row, own in zip(now.rows, ids):
            row.tokens += own
        self._place = now._replace(columns=now.columns + inputs.size[1])
        return output

    # ---- what transformers does with a cache between passes ----------------------------------------------------------

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i goes on from what row ``beam_idx[i]`` was: as a branch, where several do."""
        with self._turn("reorder_cache"):
            self._recover()
            self._take([int(row) for row in beam_idx.tolist()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row ``repeats`` times, side by side."""
        with self._turn("batch_repeat_interleave"):
            self._recover()
            self._take([row for row in range(len(self._place.rows)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Only the rows ``indices``, in their order."""
        with self._turn("batch_select_indices"):
            self._recover()
            self._take([int(row) for row in torch.arange(len(self._place.rows))[indices].tolist()])

    def _take(self, indices: list[int]) -> None:
        place = self._place
        if indices == list(range(len(place.rows))):
            return
        layers = place.form.taken(place, indices)
        if self.cache.closed:  # passes do not come here any more, and nobody knows the rows
            self._place = place._replace(layers=layers, rows=())
            return
        rows = tuple(
            place.rows[row] if row not in indices[:at] else place.rows[row].branch() for at, row in enumerate(indices)
        )
        self._place = place._replace(layers=layers, rows=rows, undo=None)
        for row in place.rows:
            if row not in rows:
                row.close()
        if self._closed:  # by another thread, meanwhile
            for row in rows:
                row.close()

    def crop(self, tokens_to_remove: int) -> None:
        """Goes back by that many tokens, a number of 0 or less. A window has to reach that far:
        ``NotRestorableError``."""
        if tokens_to_remove > 0:
            raise ArgumentError(f"[hf] crop: got {tokens_to_remove} tokens to remove, allowed 0 or a negative number")
        with self._turn("crop"):
            self._recover()
            place = self._place
            layers = place.form.cropped(place, tokens_to_remove)
            columns = max(0, place.columns + tokens_to_remove)
            self._place = place._replace(layers=layers, columns=columns, undo=None)
            for row in place.rows:
                row.cut(columns)
                row.rewind()

    def reset(self) -> None:
        """As new: the next pass begins with its first token."""
        with self._turn("reset"):
            self._recover()
            self._clear()

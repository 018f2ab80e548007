"""Which numbers a tensor holds, without reading all of them where that can be told from less.

A mark is what can be had in microseconds: which object it is, torch's count of writes to it, where its memory is, and
seventeen of its numbers. Torch does not count what goes through ``parameter.data``, as merging an adapter does; the
numbers show it unless the write spares all of them. A name is what a fingerprint needs: a digest of every byte, made
once for each mark. Where nothing leaves the process, the mark is name enough.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence

import torch
from torch.utils.weak import WeakIdKeyDictionary

SAMPLED = 17  # numbers of each tensor; with a step of 1/17 of it they seldom stand in the same column
_BLOCK = 1 << 26  # bytes hashed at a time
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
PROCESS = uuid.uuid4().hex  # in names that mean nothing elsewhere


class Tensors:
    """Names of tensors, for as long as it lives. ``content``: whether names are those of their bytes."""

    def __init__(self, content: bool) -> None:
        self._content = content
        self._serials: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._next = 0
        self._digests: dict[str, str] = {}

    def mark(self, tensor: torch.Tensor) -> str:
        return f"{self._serial(tensor)}.{version(tensor)}.{place(tensor)}.{_sample_of(tensor).hex()}"

    def name(self, tensor: torch.Tensor, mark: str) -> str:
        """The same for the same numbers of the same dtype, shape and kind of device; ``mark``: the tensor's."""
        about = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.device.type}"
        if not self._content or not _readable(tensor):
            return f"{about} {PROCESS} {mark}"
        if mark not in self._digests:
            self._digests[mark] = digest(tensor)
        return f"{about} {self._digests[mark]}"

    def read_ahead(self, tensors: Sequence[torch.Tensor], workers: int) -> None:
        """Makes the digests that :meth:`name` will want, on several threads."""
        from concurrent.futures import ThreadPoolExecutor

        if not self._content:
            return
        wanted = {self.mark(each): each for each in tensors if _readable(each)}
        wanted = {mark: each for mark, each in wanted.items() if mark not in self._digests}
        with ThreadPoolExecutor(max(1, workers)) as pool:
            self._digests.update(zip(wanted, pool.map(digest, wanted.values())))

    def _serial(self, tensor: torch.Tensor) -> int:
        found = self._serials.get(tensor)
        if found is None:
            found = self._serials[tensor] = self._next = self._next + 1
        return int(found)


class Sample:
    """A few numbers of many tensors, and whether they are still the same; one copy for each dtype and device."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in tensors:
            if _readable(tensor) and tensor.numel():
                groups.setdefault((tensor.dtype, tensor.device), []).append(_view(tensor))
        self._groups = list(groups.values())
        self._seen = self._read()

    def changed(self) -> bool:
        return any(not torch.equal(a, b) for a, b in zip(self._seen, self._read()))

    def _read(self) -> list[torch.Tensor]:
        """Bytes, since a NaN does not equal itself."""
        with torch.no_grad():
            return [torch.cat(views).view(torch.uint8).cpu() for views in self._groups]


def version(tensor: torch.Tensor) -> int:
    """How often torch saw it written to; -1 where torch does not count."""
    return -1 if tensor.is_inference() else int(tensor._version)


def place(tensor: torch.Tensor) -> int:
    """Where its numbers are; 0 for kinds of tensors that do not say."""
    try:
        return int(tensor.data_ptr())
    except RuntimeError:
        return 0


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 (hex) of every byte, in the order of its elements."""
    held = hashlib.sha256()
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    for start in range(0, flat.numel() * flat.element_size(), _BLOCK):
        first, last = start // flat.element_size(), (start + _BLOCK) // flat.element_size()
        held.update(flat[first:last].view(torch.uint8).numpy())
    return held.hexdigest()


def _readable(tensor: torch.Tensor) -> bool:
    """Whether its numbers are in its memory: not for classes of tensors that keep them elsewhere, or none at all."""
    return type(tensor) in _PLAIN and tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_meta)


def _view(tensor: torch.Tensor) -> torch.Tensor:
    """One dimension of ``SAMPLED`` numbers or one more, in the tensor's own memory. REQUIRES: it has any."""
    flat = tensor.detach()
    if flat.is_contiguous():
        flat = flat.view(-1)
    while flat.ndim > 1:
        flat = flat[0]
    return flat.reshape(-1)[:: max(1, flat.numel() // SAMPLED)]


def _sample_of(tensor: torch.Tensor) -> bytes:
    if not _readable(tensor) or not tensor.numel():
        return b""
    with torch.no_grad():
        made: bytes = _view(tensor).contiguous().view(torch.uint8).cpu().numpy().tobytes()
    return made

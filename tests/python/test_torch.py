"""Tensors of torch, as they come: into steps, operations and `kv.tensor`, and results back without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bounds
import kvtrie as kv
from fakes import make_cache

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("nothing_left_over")

ROWS, HEADS, DIM = 3, 2, 4  # of the caches of fakes.py


def normal(*shape: int, dtype: Any = None) -> Any:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator).to(dtype or torch.float32)


def values_of(tensor: Any) -> Any:
    """What it means, worked out by torch."""
    return tensor.detach().resolve_conj().resolve_neg().to(torch.float64).numpy()


FORMS: dict[str, Any] = {
    "plain": lambda: normal(ROWS, HEADS, DIM),
    "with a graph": lambda: normal(ROWS, HEADS, DIM).requires_grad_(True) * 2,
    "a parameter": lambda: torch.nn.Parameter(normal(ROWS, HEADS, DIM)),
    "transposed": lambda: normal(HEADS, ROWS, DIM).transpose(0, 1),
    "every other": lambda: normal(ROWS, HEADS, 2 * DIM)[..., ::2],
    "expanded": lambda: normal(1, HEADS, DIM).expand(ROWS, HEADS, DIM),
    "flipped": lambda: normal(ROWS, HEADS, DIM).flip(0),
    "bfloat16": lambda: normal(ROWS, HEADS, DIM, dtype=torch.bfloat16),
    "bfloat16 transposed": lambda: normal(HEADS, ROWS, DIM, dtype=torch.bfloat16).transpose(0, 1),
    "bfloat16 with a graph": lambda: normal(ROWS, HEADS, DIM, dtype=torch.bfloat16).requires_grad_(True) + 1,
    "float16": lambda: normal(ROWS, HEADS, DIM, dtype=torch.float16),
    "float64": lambda: normal(ROWS, HEADS, DIM, dtype=torch.float64),
    "negated by a bit": lambda: torch.complex(normal(ROWS, HEADS, DIM), normal(ROWS, HEADS, DIM)).conj().imag,
    "with an offset": lambda: normal(ROWS + 2, HEADS, DIM)[2:],
}


@pytest.mark.parametrize("form", FORMS)
def test_steps_take_it_as_it_comes(form: str) -> None:
    given = FORMS[form]()
    cache = make_cache()
    with cache.begin(range(ROWS)) as session:
        step = session.decode()
        step.put(0, given, given)
        out = step.attend(1, given, given, given, scale=0.5)
        wanted = values_of(given).astype(np.float32)
        for layer in range(2):
            for rows in session.kv(layer):
                np.testing.assert_array_equal(rows, wanted)
    np.testing.assert_array_equal(out.numpy()[0], wanted[0])  # the first row sees itself alone


@pytest.mark.parametrize("form", FORMS)
def test_tensors_are_made_of_it(form: str) -> None:
    given = FORMS[form]()
    made = kv.tensor(given)
    narrow = {torch.bfloat16: "bfloat16", torch.float16: "float16"}.get(given.dtype, "float32")
    assert made.dtype == narrow
    np.testing.assert_array_equal(made.astype("float32").numpy(), values_of(given).astype(np.float32))


def test_results_become_torch_without_a_copy() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
        given = (100 * normal(ROWS, DIM)).to(dtype)
        result = kv.tensor(given)
        shown = torch.from_dlpack(result)
        assert shown.dtype == dtype
        assert torch.equal(shown, given)
        with result.mapped(write=False) as view:
            assert view.ctypes.data == shown.data_ptr()


def test_rows_of_a_session_become_torch_without_a_copy() -> None:
    cache = make_cache()
    given = normal(ROWS, HEADS, DIM)
    with cache.begin(range(ROWS)) as session:
        step = session.decode()
        step.put(0, given, given)
        step.put(1, given.transpose(0, 1), given.transpose(0, 1), heads_first=True)
        k, _ = session.kv(1, heads_first=True)
        shown = torch.from_numpy(k)[None]  # [1, heads, n, dim]
        assert shown.data_ptr() == k.ctypes.data
        assert torch.equal(shown[0], given.transpose(0, 1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_is_used_in_place_where_that_is_asked_for(dtype: str) -> None:
    given = torch.zeros(64, dtype=getattr(torch, dtype))
    made = kv.tensor(given, device="host", copy=False)
    given[3] = 7
    assert made.astype("float32").numpy()[3] == 7
    with pytest.raises(kv.errors.NotSupportedError, match="has to change"):
        kv.tensor(given[::2], device="host", copy=False)


def test_operations_take_it() -> None:
    x, weight = normal(ROWS, 8), torch.nn.Parameter(normal(8))
    wanted = torch.nn.functional.rms_norm(x, (8,), weight, 1e-6).detach().numpy()
    bounds.close(kv.ops.rms_norm(x, weight, 1e-6), wanted, bounds.SMALL_SUMS, each=True)


def test_tokens_come_from_torch() -> None:
    cache = make_cache()
    with cache.begin(torch.arange(5)) as session:
        session.append(torch.tensor([7, 8], dtype=torch.int32))
        assert session.tokens.tolist() == [0, 1, 2, 3, 4, 7, 8]
    for tokens in (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)):
        with pytest.raises(kv.errors.ArgumentTypeError, match=r"\[begin\] tokens"):
            cache.begin(tokens)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (lambda: torch.zeros(2, 2, dtype=torch.complex64), "complex64"),
        (lambda: torch.zeros(2, 2, dtype=torch.bool), "bool"),
        (lambda: torch.zeros(2, 2, dtype=torch.float8_e4m3fn), "type code"),
        (lambda: torch.zeros(2, 2).to_sparse(), "sparse|strided|layout"),
        (lambda: torch.zeros(2, 2, device="meta"), "meta"),
    ],
    ids=["complex", "bool", "float8", "sparse", "meta"],
)
def test_what_is_no_array_of_numbers_in_memory_is_refused(given: Any, text: str) -> None:
    with pytest.raises(kv.errors.ArgumentTypeError, match=rf"(?s)\[tensor\] array: got .*({text})"):
        kv.tensor(given())


class Elsewhere:
    """Memory of a device that the host does not see."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)  # CUDA

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("asked for memory that nobody here can read")


def test_memory_of_another_device_is_refused_by_name() -> None:
    with pytest.raises(kv.errors.ArgumentTypeError, match="device type 2"):
        kv.tensor(Elsewhere())


class Once:
    """Shows the memory of a tensor by the capsules of one protocol version."""

    def __init__(self, tensor: Any, versioned: bool) -> None:
        self.tensor, self.versioned, self.asked = tensor, versioned, 0

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        self.asked += 1
        if not self.versioned and options:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        return self.tensor.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [False, True])
def test_capsules_of_both_versions_are_read(versioned: bool) -> None:
    given = normal(ROWS, DIM, dtype=torch.bfloat16)
    shown = Once(given, versioned)
    made = kv.tensor(shown)
    assert made.dtype == "bfloat16"
    assert torch.equal(torch.from_dlpack(made), given)
    assert shown.asked == (1 if versioned else 2)


def test_a_capsule_that_was_taken_over_is_refused() -> None:
    given = normal(ROWS, DIM)
    capsule = given.__dlpack__()
    torch.from_dlpack(capsule)

    class Used:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            return capsule

    with pytest.raises(kv.errors.ArgumentTypeError, match="taken over"):
        kv.tensor(Used())


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3), ()])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_empty_and_scalar_tensors_keep_their_shape(shape: tuple[int, ...], dtype: str) -> None:
    made = kv.tensor(torch.ones(shape, dtype=getattr(torch, dtype)))
    assert (made.shape, made.dtype) == (shape, dtype)
    assert torch.equal(torch.from_dlpack(made), torch.ones(shape, dtype=getattr(torch, dtype)))


def test_a_view_outlives_its_source() -> None:
    given = torch.full((1000,), 3.0)
    array = kv.tensor(given, device="host", copy=False)
    del given
    assert (array.numpy() == 3).all()

"""Tensors: arrays in, arrays out, in every dtype, and what is refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import ROUNDED_TO_BFLOAT16, ROUNDED_TO_FLOAT16, close

pytestmark = pytest.mark.usefixtures("nothing_left_over")

PLACES = ["device", "host"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, device: Any) -> Any:
    return device if request.param == "device" else "host"


def aligned(shape: tuple[int, ...], dtype: Any, alignment: int = 64) -> Any:
    """An array whose first element lies at a multiple of `alignment` bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint32"])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (1, 1), (0, 4)])
def test_what_goes_in_comes_out(dtype: str, shape: tuple[int, ...], place: Any) -> None:
    array = np.random.default_rng(1).integers(0, 1000, shape).astype(dtype)
    x = kv.tensor(array, device=place)
    assert (x.shape, x.dtype, x.nbytes, x.size, x.ndim) == (shape, dtype, array.nbytes, array.size, array.ndim)
    assert x.device == place
    assert len(x) == shape[0]
    for back in (x.numpy(), np.asarray(x), np.array(x)):
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_numpy_is_a_copy(place: Any) -> None:
    x = kv.tensor(np.zeros(4, np.float32), device=place)
    x.numpy()[:] = 7
    np.testing.assert_array_equal(x.numpy(), np.zeros(4))


def test_the_array_may_change_afterwards(place: Any) -> None:
    array = np.arange(4, dtype=np.float32)
    x = kv.tensor(array, device=place)
    array[:] = -1
    np.testing.assert_array_equal(x.numpy(), [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array([1.5, 2.5]), "float32"),
        (np.array([1, -2], np.int64), "int32"),
        (np.array([1, 2], np.uint8), "int32"),
        (np.array([1, 2], np.uint64), "uint32"),
        (np.array([1.5], ">f4"), "float32"),
        (np.array([7], ">i2"), "int32"),
        ([[1, 2], [3, 4]], "int32"),
        ([1.5, 2], "float32"),
        (memoryview(bytearray(b"ab")), "int32"),
        (np.float64(2.5), "float32"),
    ],
)
def test_other_dtypes_become_the_nearest(given: Any, dtype: str) -> None:
    x = kv.tensor(given)
    assert x.dtype == dtype
    np.testing.assert_array_equal(x.numpy(), np.asarray(given))


@pytest.mark.parametrize("layout", ["strided", "transposed", "reversed", "fortran", "read_only"])
def test_any_layout(layout: str) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    view = {
        "strided": array[::2, ::3],
        "transposed": array.T,
        "reversed": array[::-1],
        "fortran": np.asfortranarray(array),
        "read_only": array,
    }[layout]
    if layout == "read_only":
        array.flags.writeable = False
    np.testing.assert_array_equal(kv.tensor(view).numpy(), view)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array([1e39]), None),
        (np.array([0.0, 70000.0], np.float32), "float16"),
        (np.array([2**31], np.int64), None),
        (np.array([-(2**31) - 1], np.int64), "int32"),
        (np.array([-1], np.int32), "uint32"),
        (np.array([2**32], np.uint64), None),
        (np.array([3.4e38], np.float32), "bfloat16"),
    ],
)
def test_a_number_that_does_not_fit_is_refused(given: Any, dtype: Any) -> None:
    with pytest.raises(kv.errors.ArgumentError, match=r"array\[\d\]: got .*, allowed"):
        kv.tensor(given, dtype)


def test_infinities_and_nans_pass() -> None:
    values = np.array([np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(kv.tensor(values).numpy(), values)
    np.testing.assert_array_equal(kv.tensor(values, "float16").numpy(), values)
    assert np.isnan(kv.tensor(values, "bfloat16").astype("float32").numpy()[2])


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array([True]), None),
        (np.array(["a"]), None),
        (np.array([1 + 2j]), None),
        (np.array([None]), None),
        (np.array([1], np.uint16), None),
        (np.array([1.0]), "int32"),
        ("text", None),
        (object(), None),
        ([[1], [1, 2]], None),
        (np.array([1]), "float64"),
        (np.array([1]), 5),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(given: Any, dtype: Any) -> None:
    with pytest.raises(kv.errors.ArgumentTypeError, match="allowed"):
        kv.tensor(given, dtype)


def test_bfloat16_as_bits_and_from_floats() -> None:
    bits = np.array([0x3F80, 0xC000, 0x7F80], np.uint16)
    x = kv.tensor(bits, "bfloat16")
    assert x.dtype == "bfloat16"
    np.testing.assert_array_equal(x.numpy(), bits)
    np.testing.assert_array_equal(x.astype("float32").numpy(), [1, -2, np.inf])
    # 1 + 2^-8 lies half way between two bfloat16 numbers: to the even one.
    rounded = kv.tensor(np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32), "bfloat16")
    np.testing.assert_array_equal(rounded.astype("float32").numpy(), [1, 1 + 2**-6, 1 + 2**-7])
    np.testing.assert_array_equal(kv.tensor(x).numpy(), bits)


def test_bfloat16_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    x = kv.tensor(array)
    assert x.dtype == "bfloat16"
    np.testing.assert_array_equal(x.numpy(), array.view(np.uint16))
    np.testing.assert_array_equal(kv.tensor(array, "float32").numpy(), [1, -2.5])


@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
def test_astype(source: str, wanted: str, place: Any) -> None:
    values = np.array([0, 1.5, -2, 0.333251953125], np.float32)
    x = kv.tensor(values, source, device=place).astype(wanted)
    assert x.dtype == wanted
    coarse = "bfloat16" in (source, wanted)
    close(x.astype("float32"), values, ROUNDED_TO_BFLOAT16 if coarse else ROUNDED_TO_FLOAT16, each=True)


def test_slices_and_shapes_share_the_storage(place: Any) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    x = kv.tensor(array, device=place)
    np.testing.assert_array_equal(x[1:3].numpy(), array[1:3])
    np.testing.assert_array_equal(x[-1:].numpy(), array[-1:])
    np.testing.assert_array_equal(x[2:2].numpy(), array[2:2])
    np.testing.assert_array_equal(x[:].reshape(3, -1).numpy(), array.reshape(3, 8))
    np.testing.assert_array_equal(x.reshape((2, 12)).numpy(), array.reshape(2, 12))
    np.testing.assert_array_equal(x[1:].reshape(-1)[4:6].numpy(), array[1:].reshape(-1)[4:6])
    with x[2:3].mapped() as part:
        part[:] = -1
    assert (x.numpy()[2] == -1).all()


@pytest.mark.parametrize("index", [0, -1, (slice(1), slice(1)), ..., None, "a", 1.0])
def test_only_slices_of_the_first_axis(index: Any) -> None:
    x = kv.tensor(np.zeros((2, 2), np.float32))
    with pytest.raises(kv.errors.ArgumentTypeError, match="index"):
        x[index]
    with pytest.raises(kv.errors.ArgumentError, match="step"):
        x[::2]
    with pytest.raises(TypeError, match="not iterable"):
        iter(x)


@pytest.mark.parametrize("shape", [(5,), (-1, -1), (-2, 2), (0,)])
def test_a_shape_that_does_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(kv.errors.ArgumentError):
        kv.tensor(np.zeros((2, 2), np.float32)).reshape(*shape)


def test_rank_0() -> None:
    x = kv.tensor(np.float32(3))
    assert (x.shape, float(x.numpy())) == ((), 3.0)
    with pytest.raises(kv.errors.ArgumentTypeError, match="rank 0"):
        len(x)


def test_mapped_reads_and_writes(place: Any) -> None:
    x = kv.tensor(np.arange(6, dtype=np.float32), device=place)
    with x.mapped() as array:
        np.testing.assert_array_equal(array, np.arange(6))
        array *= 2
    np.testing.assert_array_equal(x.numpy(), 2 * np.arange(6))
    with x.mapped(write=False) as array, pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    mapping = x.mapped()
    with mapping, pytest.raises(kv.errors.BusyError):
        mapping.__enter__()


def test_mapped_is_left_by_an_error(place: Any) -> None:
    x = kv.tensor(np.zeros(4, np.float32), device=place)
    with pytest.raises(ZeroDivisionError), x.mapped() as array:
        array[0] = 1 / 0
    with x.mapped() as array:
        array[:] = 1
    np.testing.assert_array_equal(x.numpy(), np.ones(4))


def test_dlpack_out(place: Any, device: Any) -> None:
    x = kv.tensor(np.arange(6, dtype=np.float32).reshape(2, 3), device=place)
    if place == device and not device.unified_memory:
        with pytest.raises(BufferError):
            x.__dlpack__()
        return
    assert x.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(np.from_dlpack(x), x.numpy())
    np.testing.assert_array_equal(np.from_dlpack(x[1:]), x.numpy()[1:])
    capsule = x.__dlpack__(copy=True)
    del capsule  # nobody took it over
    with pytest.raises(BufferError, match="dl_device"):
        x.__dlpack__(dl_device=(2, 0))


def test_dlpack_in() -> None:
    class OnlyDlpack:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    array = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(kv.tensor(OnlyDlpack(array)).numpy(), array)


def test_a_tensor_of_a_tensor(device: Any) -> None:
    x = kv.tensor(np.arange(4, dtype=np.int32))
    y = kv.tensor(x, device="host")
    assert (y.device, y.dtype) == ("host", "int32")
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    assert kv.tensor(y, "float32").device == device


def test_without_a_copy(place: Any, device: Any) -> None:
    array = aligned((4, 3), np.float32)
    if place == device and not device.unified_memory:
        with pytest.raises(kv.errors.NotSupportedError, match="share memory"):
            kv.tensor(array, device=place, copy=False)
        return
    x = kv.tensor(array, device=place, copy=False)
    array[:] = 5
    np.testing.assert_array_equal(x.numpy(), array)
    with x.mapped() as view:
        view[:] = 6
    assert (array == 6).all()


@pytest.mark.parametrize("why", ["dtype", "layout", "read-only", "address"])
def test_without_a_copy_or_not_at_all(why: str, device: Any) -> None:
    array = aligned((4, 4), np.float32)
    given = {"dtype": array.astype(np.float64), "layout": array[:, ::2], "read-only": array, "address": array[1:]}[why]
    if why == "read-only":
        given.flags.writeable = False
    if why == "address" and not device.unified_memory:
        pytest.skip("the address does not matter where memory is not shared")
    with pytest.raises(kv.errors.NotSupportedError, match=r"copy=False: .*use copy=True"):
        kv.tensor(given, copy=False)


def test_no_pickles_and_no_deep_copies() -> None:
    x = kv.tensor([1.0])
    for attempt in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(kv.errors.ArgumentTypeError, match=r"pickling x\.numpy"):
            attempt(x)


def test_repr_says_what_and_where(device: Any) -> None:
    assert repr(kv.tensor([[1, 2]])) == f"<kvtrie.Tensor int32[1, 2] on {device.name}>"
    assert repr(kv.tensor([1.0], device="host")) == "<kvtrie.Tensor float32[1] on the host>"


# ---- devices ---------------------------------------------------------------------------------------------------------


def test_a_device_is_opened_once(device: Any) -> None:
    assert kv.Device() == device == kv.Device(device.name.lower()[:5]) == kv.tensor([1]).device
    assert hash(kv.Device()) == hash(device)
    assert device in kv.devices()
    assert device != "host"
    assert kv.Device(device) == device


def test_what_a_device_says(device: Any) -> None:
    assert device.kind in ("cpu", "gpu", "accelerator", "other")
    assert device.capabilities["compute_units"] >= 1
    assert device.global_bytes > 0
    assert isinstance(device.unified_memory, bool)
    assert device.name in repr(device)


def test_memory_counts_exactly(device: Any) -> None:
    before = device.memory()
    x = kv.tensor(np.zeros((100, 10), np.float32))
    during = device.memory()
    assert during["live_buffers"] - before["live_buffers"] == 1
    assert during["live_bytes"] - before["live_bytes"] >= 4000
    assert during["upload_bytes"] - before["upload_bytes"] == 4000
    del x
    assert device.memory()["live_bytes"] == before["live_bytes"]


def test_trim_gives_memory_back(device: Any) -> None:
    device.trim()
    copied = kv.tensor(np.zeros(1000, np.float32))
    kv.ops.add(copied, copied)  # its result is given back; copies are not kept
    kept = device.memory()["pooled_bytes"]
    assert kept > 0
    assert device.trim() >= kept
    assert device.memory()["pooled_bytes"] == 0


@pytest.mark.parametrize("name", ["no such device", "\0"])
def test_a_device_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(kv.errors.ArgumentError, match="name: got"):
        kv.Device(name)
    with pytest.raises(kv.errors.ArgumentError):
        kv.tensor([1], device=name)
    if "\0" not in name:
        monkeypatch.setenv("KVTRIE_DEVICE", name)
        with pytest.raises(kv.errors.ArgumentError, match="KVTRIE_DEVICE: got"):
            kv.Device()


def test_the_environment_names_the_default(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRIE_DEVICE", device.platform[:4])
    assert kv.Device() == device


@pytest.mark.parametrize("name", [5, 1.5, [], b"x"])
def test_a_device_of_the_wrong_type(name: Any) -> None:
    with pytest.raises(kv.errors.ArgumentTypeError):
        kv.Device(name)
    with pytest.raises(kv.errors.ArgumentTypeError):
        kv.tensor([1], device=name)


def test_the_best_device_is_chosen_by_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtrie import _devices, _health

    class Fake:
        def __init__(self, index: int, kind: str, units: int) -> None:
            self.index, self.kind, self.capabilities = index, kind, {"compute_units": units}
            self.name, self.platform = f"{kind} {index}", "Fake"

    found = [Fake(0, "cpu", 64), Fake(1, "gpu", 20), Fake(2, "gpu", 40), Fake(3, "gpu", 40), Fake(4, "accelerator", 99)]
    monkeypatch.setattr(_devices._core, "devices", lambda: found)
    assert _devices._best("", "name") is found[2]
    assert _devices._best("CPU", "name") is found[0]
    monkeypatch.setattr(_devices._core, "devices", list)
    monkeypatch.setattr(_health.platform, "machine", lambda: "x86_64")
    for in_tree, advice in (
        (True, "apt-get install pocl-opencl-icd"),
        (False, r"install 'kvtrie\[cpu\]'.* or pocl-opencl-icd"),
    ):
        monkeypatch.setattr(_health, "in_source_tree", lambda in_tree=in_tree: in_tree)
        with pytest.raises(kv.errors.DeviceError, match=advice):
            _devices._best("", "name")


@pytest.mark.parametrize(
    ("number", "dtype", "allowed"),
    [
        (np.float64(1e300), "float32", "up to 3.40"),
        (np.float32(1e38), "float16", "up to 65504"),
        (np.float32(3.4e38), "bfloat16", "up to 3.39e"),
        (np.int64(2**40), "int32", "-2147483648 to 2147483647"),
    ],
)
def test_a_single_number_that_does_not_fit_is_refused(number: Any, dtype: str, allowed: str) -> None:
    with pytest.raises(kv.errors.ArgumentError, match=rf"array: got .*, allowed {allowed}"):
        kv.tensor(np.array(number), device="host", dtype=dtype)

"""Contexts, queues and buffers shared with pyopencl as PyPI has it, which brings a loader of its own.

A handle names the driver's object, so it holds whichever loader it came through, if both opened the same driver.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import CodingModel, compute, make_cache
from processes import run_python, wait_for

cl = pytest.importorskip("pyopencl")
pytestmark = pytest.mark.usefixtures("nothing_left_over")


def their_device() -> Any:
    """pyopencl's view of the device that kvtrie takes."""
    wanted = kv.Device()
    for platform in cl.get_platforms():
        for device in platform.get_devices():
            if (platform.name, device.name) == (wanted.platform, wanted.name):
                return device
    pytest.skip("pyopencl does not see the driver that kvtrie uses")


@pytest.fixture
def context() -> Any:
    return cl.Context([their_device()])


@pytest.fixture
def queue(context: Any) -> Any:
    return cl.CommandQueue(context)


def read(queue: Any, buffer: Any, count: int, offset: int = 0) -> Any:
    array = np.empty(count, np.float32)
    cl.enqueue_copy(queue, array, buffer, src_offset=offset)
    return array


@pytest.mark.parametrize("with_queue", [False, True])
def test_a_device_on_their_context_computes_what_ours_does(context: Any, queue: Any, with_queue: bool) -> None:
    device = kv.Device.from_opencl(context, queue if with_queue else None)
    assert device.cl_context == context.int_ptr
    assert (device.cl_queue == queue.int_ptr) == with_queue
    assert device != kv.Device() and device.name == kv.Device().name
    x = np.random.default_rng(1).standard_normal((5, 16), np.float32)
    ours, theirs = kv.tensor(x), kv.tensor(x, device=device)
    assert theirs.device == device
    weight = np.ones(16, np.float32)
    wanted = kv.ops.rms_norm(ours, kv.tensor(weight), 1e-6)
    got = kv.ops.rms_norm(theirs, kv.tensor(weight, device=device), 1e-6)
    np.testing.assert_array_equal(got.numpy(), wanted.numpy())


def test_conversations_live_on_their_device(context: Any, queue: Any) -> None:
    device = kv.Device.from_opencl(context, queue)
    cache, model = make_cache(device=device, host_bytes="1MiB"), CodingModel()
    with cache.begin(range(20)) as session:
        compute(session, model, 7)
    cache.page_out(range(20))
    with cache.begin([*range(20), 5]) as session:
        assert (session.reused, session.tier) == (20, "host")
        compute(session, model)
    assert cache.check() == []


def test_their_buffer_is_a_tensor(context: Any, queue: Any) -> None:
    device = kv.Device.from_opencl(context, queue)
    array = np.arange(24, dtype=np.float32)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=array)
    tensor = kv.Tensor.from_opencl(buffer, "float32", (4, 4), device, offset=32)
    np.testing.assert_array_equal(tensor.numpy(), array[8:].reshape(4, 4))
    cl.enqueue_copy(queue, buffer, 2 * array, is_blocking=False)  # one queue: in order
    np.testing.assert_array_equal(tensor.numpy(), 2 * array[8:].reshape(4, 4))
    assert tensor.cl_mem == buffer.int_ptr and tensor.cl_offset == 32
    with tensor.mapped() as view:
        view[0, 0] = -1
    assert read(queue, buffer, 24)[8] == -1


def test_our_tensor_is_a_buffer_of_theirs() -> None:
    device = kv.Device()
    context, queue = cl.Context.from_int_ptr(device.cl_context), cl.CommandQueue.from_int_ptr(device.cl_queue)
    tensor = kv.tensor(np.arange(12, dtype=np.float32))[4:]
    buffer = cl.Buffer.from_int_ptr(tensor.cl_mem)
    assert tensor.cl_offset == 16
    np.testing.assert_array_equal(read(queue, buffer, 8, tensor.cl_offset), np.arange(4, 12))
    source = "__kernel void twice(__global float* x) { x[get_global_id(0)] *= 2; }"
    twice = cl.Program(context, source).build().twice
    twice(queue, (12,), None, buffer)
    np.testing.assert_array_equal(tensor.numpy(), 2 * np.arange(4, 12))


def test_what_was_given_away_is_no_other_tensors_memory() -> None:
    device = kv.Device()
    queue = cl.CommandQueue.from_int_ptr(device.cl_queue)
    tensor = kv.tensor(np.full(1 << 20, 7, np.float32))  # large: its buffer would be used again
    buffer = cl.Buffer.from_int_ptr(tensor.cl_mem)
    del tensor
    others = [kv.tensor(np.full(1 << 20, number, np.float32)) for number in range(3)]
    device.finish()
    assert (read(queue, buffer, 1 << 20) == 7).all()
    del others


@pytest.mark.parametrize("ours_first", [False, True])
def test_either_side_may_end_first(ours_first: bool) -> None:
    context = cl.Context([their_device()])
    queue = cl.CommandQueue(context)
    device = kv.Device.from_opencl(context, queue)
    array = np.arange(64, dtype=np.float32)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=array)
    tensor = kv.Tensor.from_opencl(buffer, "float32", (64,), device)
    if ours_first:
        del tensor, device
        gc.collect()
        np.testing.assert_array_equal(read(queue, buffer, 64), array)
    else:
        del buffer, queue, context
        gc.collect()
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert kv.tensor(array, device=device).shape == (64,)


def test_references_are_given_back(context: Any, queue: Any) -> None:
    def counts() -> tuple[int, int]:
        gc.collect()
        return context.reference_count, queue.reference_count

    kv.Device.from_opencl(context, queue)  # what a driver keeps for itself is kept by now
    # It may let go of a queue in a thread of its own.
    wait_for(lambda: counts()[1] == 1)
    before = counts()
    for _ in range(3):
        device = kv.Device.from_opencl(context, queue)
        assert counts()[1] > before[1]
        buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 256)
        held = buffer.reference_count
        tensor = kv.Tensor.from_opencl(buffer, "float32", (64,), device)
        assert buffer.reference_count == held + 1
        del tensor
        assert buffer.reference_count == held
        del device, buffer
    wait_for(lambda: counts() == before)


def test_what_cannot_be_shared_is_refused(context: Any, queue: Any) -> None:
    device = kv.Device.from_opencl(context, queue)
    other = cl.Context([their_device()])
    foreign = cl.Buffer(other, cl.mem_flags.READ_WRITE, 64)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    unordered = cl.CommandQueue(context, properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
    refused: list[tuple[Any, str]] = [
        (lambda: kv.Device.from_opencl(context, cl.CommandQueue(other)), "queue: got one of another context"),
        (lambda: kv.Device.from_opencl(context, unordered), "queue: got one that runs out of order"),
        (lambda: kv.Device.from_opencl(context.int_ptr), "context: got"),  # a number may be anything
        (lambda: kv.Device.from_opencl("context"), "context: got 'context'"),
        (lambda: kv.Device.from_opencl(context, 5), "queue: got 5"),
        (lambda: kv.Tensor.from_opencl(foreign, "float32", (4,), device), "buffer: got one of another context"),
        (lambda: kv.Tensor.from_opencl(buffer, "float32", (17,), device), "shape: got"),
        (lambda: kv.Tensor.from_opencl(buffer, "float32", (16,), device, offset=4), "shape: got"),
        (lambda: kv.Tensor.from_opencl(buffer, "float32", (4,), device, offset=2), "offset: got 2 bytes"),
        (lambda: kv.Tensor.from_opencl(buffer, "float32", (-1,), device), "shape: got -1"),
        (lambda: kv.Tensor.from_opencl(buffer, "float64", (4,), device), "float64"),
        (lambda: kv.Tensor.from_opencl(buffer, "float32", (4,), "host"), 'device: got "host"'),
        (lambda: kv.tensor([1.0], device="host").cl_mem, "host memory"),
    ]
    for call, text in refused:
        with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError)) as raised:
            call()
        assert text in str(raised.value)


ENDING = """
import numpy as np, pyopencl as cl, kvtrie as kv
wanted = kv.Device()
devices = [(p.name, d) for p in cl.get_platforms() for d in p.get_devices()]
theirs = next(each for platform, each in devices if (platform, each.name) == (wanted.platform, wanted.name))
context = cl.Context([theirs])
queue = cl.CommandQueue(context)
device = kv.Device.from_opencl(context, queue)
buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4096)
kept = [device, kv.Tensor.from_opencl(buffer, "float32", (1024,), device), kv.tensor(np.ones(8), device=device)]
kept += [kept, cl.Buffer.from_int_ptr(kept[2].cl_mem)]
print("ended")
"""


def test_an_interpreter_may_end_with_all_of_it_alive() -> None:
    done = run_python("-c", ENDING)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr

"""What the driver is, takes and costs: facts that the choice between forms of kernels and of launches rests on.

``facts``     versions, sizes and extensions, and the version and target of the PTX that a driver of NVIDIA's makes
``probes``    which instructions beyond OpenCL C its compiler takes, and which binaries
``launches``  microseconds of the host for a launch, by what comes with it: profiling, events, arguments, flushes
"""

from __future__ import annotations

import ctypes
import itertools
import re
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gpu.opencl import Driver, Refused
from gpu.rows import Rows, is_gpu, open_device

# clGetDeviceInfo's names; the last six are of cl_nv_device_attribute_query.
TEXTS = {"name": 0x102B, "vendor": 0x102C, "driver": 0x102D, "version": 0x102F, "extensions": 0x1030}
NUMBERS = {
    "compute_units": 0x1002,
    "clock_mhz": 0x100C,
    "max_group": 0x1004,
    "largest_buffer": 0x1010,
    "memory": 0x101F,
    "local_memory": 0x1023,
    "compute_capability_major": 0x4000,
    "compute_capability_minor": 0x4001,
    "registers_per_block": 0x4002,
    "warp": 0x4003,
    "copies_at_once": 0x4007,
}
EMPTY = "__kernel void empty(__global int* a) {}"


def driver_of(device: Any) -> Driver:
    """The device that kvtrie chose, by its name."""
    return Driver(str(device.name))


# ---- facts -----------------------------------------------------------------------------------------------------------


def facts(rows: Rows) -> None:
    """One row of what the driver says of itself, one of what it compiles to."""
    driver = driver_of(open_device(times=False))
    said: dict[str, Any] = {key: driver.info(code).decode(errors="replace") for key, code in TEXTS.items()}
    for key, code in NUMBERS.items():
        try:
            said[key] = int.from_bytes(driver.info(code), "little")
        except Refused:
            continue  # not of this vendor
    rows.say("\n".join(f"{key}: {str(value)[:160]}" for key, value in said.items()), what="facts", **said)
    binary = driver.binary(driver.program(EMPTY))
    header = re.findall(rb"^\s*\.(version|target|address_size)\s+(\S+)", binary[:4096], re.M)
    header_text = {key.decode(): value.decode() for key, value in header}
    rows.say(f"binary: {len(binary)} bytes, {header_text or 'no PTX'}", what="binary", bytes=len(binary), **header_text)


# ---- probes ----------------------------------------------------------------------------------------------------------


class Probe(NamedTuple):
    """``source``: OpenCL C that uses one thing; ``options``: what it is built with."""

    name: str
    source: str
    options: str = ""


def _assembly(name: str, body: str, options: str = "") -> Probe:
    kernel = (
        f"__kernel void probe(__global uint* p) {{ __local uint s[512]; uint a = p[0], b = p[1]; {body} p[0] = a; }}"
    )
    return Probe(name, kernel, options)


_MMA = (
    'float d[4] = {0, 0, 0, 0}; asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, '
    '{%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a), '
    '"r"(b)); a = as_uint(d[0]);'
)
_WGMMA = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
PROBES = (
    _assembly("inline assembly", 'asm volatile("mov.u32 %0, %%laneid;" : "=r"(a));'),
    _assembly("mma.sync", _MMA),
    _assembly(
        "ldmatrix",
        's[get_local_id(0)] = a; asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(a) : '
        '"r"((uint)(size_t)s));',
    ),
    _assembly(
        "cp.async",
        'asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint)(size_t)s), "l"(p) : "memory");',
    ),
    _assembly("ld.acquire", 'asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(a) : "l"(p) : "memory");'),
    _assembly("red.release", 'asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(b) : "memory");'),
    _assembly("wgmma", _WGMMA),
    _assembly("wgmma with -cl-nv-arch sm_90a", _WGMMA, "-cl-nv-arch sm_90a"),
    _assembly("-cl-nv-maxrregcount", "a += b;", "-cl-nv-maxrregcount=64"),
    Probe("sub-groups", "#pragma OPENCL EXTENSION cl_khr_subgroups : enable\n"
          "__kernel void probe(__global int* p) { p[0] = sub_group_reduce_add(p[1]); }"),
    Probe("Intel's block reads", "#pragma OPENCL EXTENSION cl_intel_subgroups : enable\n"
          "__kernel void probe(__global uint* p) { p[0] = intel_sub_group_block_read(p + 16); }"),
    Probe("float16 arithmetic", "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
          "__kernel void probe(__global half* p) { p[0] = p[1] * p[2]; }"),
    Probe("dot product of bytes", "__kernel void probe(__global int* p) { p[0] = "
          "__builtin_amdgcn_sdot4(p[1], p[2], p[0], false); }"),
)  # fmt: skip


def probes(rows: Rows) -> None:
    """One row for each: whether it builds, else the compiler's words."""
    driver = driver_of(open_device(times=False))

    def tell(name: str, work: Callable[[], Any]) -> None:
        try:
            work()
            said = ""
        except Refused as error:
            said = str(error)
        line = said.splitlines()[0][:100] if said else "built"
        rows.say(f"{name}: {line}", what="probe", name=name, built=not said, said=said)

    for probe in PROBES:
        tell(probe.name, lambda probe=probe: driver.program(probe.source, probe.options))  # type: ignore[misc]
    binary = driver.binary(driver.program(EMPTY))
    tell("its own binary", lambda: driver.program_of_binary(binary))
    tell("PTX for sm_90a", lambda: driver.program_of_binary(_ptx("sm_90a")))
    tell("PTX for sm_80", lambda: driver.program_of_binary(_ptx("sm_80")))


def _ptx(target: str) -> bytes:
    return f".version 8.0\n.target {target}\n.address_size 64\n.entry empty(.param .u64 a) {{ ret; }}\n".encode()


# ---- launches --------------------------------------------------------------------------------------------------------

LAUNCHES = 273  # of a decode step of a model of 135M parameters
ROUNDS = 7
ARGUMENTS = 30
NULLS = EMPTY + "\n__kernel void many(__global int* a, " + ", ".join(f"int a{i}" for i in range(1, ARGUMENTS)) + ") {}"


class Form(NamedTuple):
    """``arguments`` set before each launch; ``events`` and ``flush``: for each of so many launches, 0: none."""

    profiling: bool
    arguments: int
    events: int
    status: bool
    flush: int


FORMS = [
    Form(*each)
    for each in itertools.product((False, True), (0, 1, ARGUMENTS), (0, 16, 1), (False, True), (0, 16, 1))
    if each[2] or not each[3]
]


def launches(rows: Rows) -> None:
    """Microseconds a launch until all are enqueued, and until all are done, less what Python's calls take."""
    device = open_device(times=False)
    driver = driver_of(device)
    program, buffer = driver.program(NULLS), driver.buffer(4096)
    call = _call_us()
    rows.say(f"a call of a C function that does nothing: {call:.2f} us", what="call", us=call)
    for form in FORMS if is_gpu(device) else FORMS[::9]:
        kernel = driver.kernel(program, "many" if form.arguments == ARGUMENTS else "empty")
        values = [buffer, *[ctypes.c_int(0)] * (ARGUMENTS - 1 if form.arguments == ARGUMENTS else 0)]
        for index, value in enumerate(values):
            driver.set_argument(kernel, index, value)
        queue = driver.queue(form.profiling)
        times = [_round(driver, queue, kernel, values, form) for _ in range(ROUNDS)]
        calls = _calls(form) * call
        host, whole = (max(0.0, statistics.median(column) / LAUNCHES - calls) for column in zip(*times))
        rows.say(f"{form}: host {host:.2f} us, all {whole:.2f} us", what="launch", **form._asdict(), host_us=host,
                 all_us=whole, spread_us=(max(t[0] for t in times) - min(t[0] for t in times)) / LAUNCHES)  # fmt: skip


def _call_us() -> float:
    """What ctypes itself takes for a call: that of a C function which does next to nothing."""
    nothing = ctypes.CDLL(None).labs
    begun = time.perf_counter()
    for _ in range(20000):
        nothing(7)
    return (time.perf_counter() - begun) / 20000 * 1e6


def _calls(form: Form) -> float:
    """Calls of C for each launch."""
    events = 1 / form.events if form.events else 0.0
    return 1 + form.arguments + (events if form.status else 0.0) + (1 / form.flush if form.flush else 0.0)


def _round(driver: Driver, queue: Any, kernel: Any, values: list[Any], form: Form) -> tuple[float, float]:
    size, into, events = ctypes.byref(ctypes.c_size_t(128)), ctypes.c_int(0), []
    begun = time.perf_counter()
    for index in range(1, LAUNCHES + 1):
        for at in range(form.arguments):
            driver.set_argument(kernel, at, values[at])
        event = ctypes.c_void_p() if form.events and index % form.events == 0 else None
        driver.enqueue(queue, kernel, size, None if event is None else ctypes.byref(event))
        if event is not None:
            events.append(event)
            if form.status:
                driver.status(event, into)
        if form.flush and index % form.flush == 0:
            driver.flush(queue)
    host = time.perf_counter() - begun
    driver.finish(queue)
    whole = time.perf_counter() - begun
    for event in events:
        driver.release(event)
    return 1e6 * host, 1e6 * whole

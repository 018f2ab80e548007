"""As much of OpenCL as `facts`, `probes` and `launches` need, by ctypes: what kvtrie keeps to itself.

kvtrie decides how a program is built and a kernel launched; these parts ask the driver what it would do otherwise. So
they call it themselves, on the device that kvtrie chose. One thread; a call that fails is :class:`Refused`.
"""

from __future__ import annotations

import ctypes
from typing import Any

_DEVICE_TYPE_ALL, _NAME, _QUEUE_PROFILING = 0xFFFFFFFF, 0x102B, 2
_BUILD_LOG, _BINARY_SIZES, _BINARIES, _EVENT_STATUS = 0x1183, 0x1165, 0x1166, 0x11D3
_READ_WRITE = 1


class Refused(Exception):
    """A call that the driver answered with an error."""


class Driver:
    """One device by the part of a name, and a context of its own on it."""

    def __init__(self, name: str) -> None:
        self._cl = ctypes.CDLL("libOpenCL.so.1")
        for made in ("Context", "CommandQueue", "ProgramWithSource", "ProgramWithBinary", "Kernel", "Buffer"):
            getattr(self._cl, f"clCreate{made}").restype = ctypes.c_void_p
        self.device = self._find(name)
        self._context = self._made("clCreateContext", None, 1, self._devices(), None, None)

    # --- calls ----------------------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cl, name)(*arguments)
        if code != 0:
            raise Refused(f"[{name}] got {code}")

    def _made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        code = ctypes.c_int(0)
        made = getattr(self._cl, name)(*arguments, ctypes.byref(code))
        if code.value != 0 or not made:
            raise Refused(f"[{name}] got {code.value}")
        return ctypes.c_void_p(made)

    def _devices(self) -> Any:
        return (ctypes.c_void_p * 1)(self.device)

    def _find(self, name: str) -> Any:
        platforms, count = (ctypes.c_void_p * 16)(), ctypes.c_uint(0)
        self._call("clGetPlatformIDs", 16, platforms, ctypes.byref(count))
        for platform in platforms[: count.value]:
            devices, found = (ctypes.c_void_p * 16)(), ctypes.c_uint(0)
            kinds = ctypes.c_ulong(_DEVICE_TYPE_ALL)
            platform_ = ctypes.c_void_p(platform)
            if self._cl.clGetDeviceIDs(platform_, kinds, 16, devices, ctypes.byref(found)) != 0:
                continue
            for device in devices[: found.value]:
                own = self.info(_NAME, ctypes.c_void_p(device)).decode()
                if own and own in name:
                    return device
        raise Refused(f"[clGetDeviceIDs] got no device that {name!r} names")

    def info(self, what: int, device: Any = None) -> bytes:
        """What clGetDeviceInfo says, without the zero at the end of a text."""
        size, device = ctypes.c_size_t(0), device or ctypes.c_void_p(self.device)
        self._call("clGetDeviceInfo", device, what, ctypes.c_size_t(0), None, ctypes.byref(size))
        value = ctypes.create_string_buffer(size.value)
        self._call("clGetDeviceInfo", device, what, size, value, None)
        return value.raw.rstrip(b"\0") if size.value > 8 else value.raw

    # --- programs -------------------------------------------------------------------------------------------------

    def program(self, source: str, options: str = "") -> ctypes.c_void_p:
        """Built from OpenCL C; the error is what the compiler says."""
        text = ctypes.c_char_p(source.encode())
        return self._built(self._made("clCreateProgramWithSource", self._context, 1, ctypes.byref(text), None), options)

    def program_of_binary(self, binary: bytes) -> ctypes.c_void_p:
        """Built from what :meth:`binary` gave, or from PTX text where the driver takes it."""
        size, data = ctypes.c_size_t(len(binary)), ctypes.c_char_p(binary)
        made = self._made(
            "clCreateProgramWithBinary", self._context, 1, self._devices(), ctypes.byref(size), ctypes.byref(data), None
        )
        return self._built(made, "")

    def _built(self, program: ctypes.c_void_p, options: str) -> ctypes.c_void_p:
        code = self._cl.clBuildProgram(program, 1, self._devices(), options.encode(), None, None)
        if code == 0:
            return program
        log = ctypes.create_string_buffer(1 << 16)
        device = ctypes.c_void_p(self.device)
        self._cl.clGetProgramBuildInfo(program, device, _BUILD_LOG, ctypes.c_size_t(1 << 16), log, None)
        self._cl.clReleaseProgram(program)
        raise Refused(f"[clBuildProgram] got {code}: {log.value.decode(errors='replace').strip()[:1500]}")

    def binary(self, program: ctypes.c_void_p) -> bytes:
        """What the driver made of a program: PTX text, or anything."""
        size, word = ctypes.c_size_t(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_size_t))
        self._call("clGetProgramInfo", program, _BINARY_SIZES, word, ctypes.byref(size), None)
        data = ctypes.create_string_buffer(size.value)
        places = (ctypes.c_char_p * 1)(ctypes.addressof(data))
        self._call("clGetProgramInfo", program, _BINARIES, word, places, None)
        return data.raw

    def kernel(self, program: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        return self._made("clCreateKernel", program, name.encode())

    def buffer(self, nbytes: int) -> ctypes.c_void_p:
        return self._made("clCreateBuffer", self._context, ctypes.c_ulong(_READ_WRITE), ctypes.c_size_t(nbytes), None)

    def queue(self, profiling: bool) -> ctypes.c_void_p:
        properties = ctypes.c_ulong(_QUEUE_PROFILING if profiling else 0)
        return self._made("clCreateCommandQueue", self._context, ctypes.c_void_p(self.device), properties)

    # --- launches: unchecked, so that Python's part is small and the same ------------------------------------------

    def set_argument(self, kernel: ctypes.c_void_p, index: int, value: Any) -> None:
        """Of a buffer or an int."""
        self._cl.clSetKernelArg(kernel, index, ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(value))

    def enqueue(self, queue: ctypes.c_void_p, kernel: ctypes.c_void_p, size: Any, event: Any) -> int:
        """``size``: a c_size_t, work-items and group; ``event``: None, or byref of a c_void_p."""
        return int(self._cl.clEnqueueNDRangeKernel(queue, kernel, 1, None, size, size, 0, None, event))

    def status(self, event: ctypes.c_void_p, into: ctypes.c_int) -> None:
        self._cl.clGetEventInfo(event, _EVENT_STATUS, ctypes.c_size_t(4), ctypes.byref(into), None)

    def flush(self, queue: ctypes.c_void_p) -> None:
        self._cl.clFlush(queue)

    def finish(self, queue: ctypes.c_void_p) -> None:
        self._call("clFinish", queue)

    def release(self, event: ctypes.c_void_p) -> None:
        self._cl.clReleaseEvent(event)

"""An interpreter of PTX: runs kernels of NVIDIA GPUs without one, and looks for what a GPU would only sometimes show.

clang turns OpenCL C, also with inline PTX, into PTX text. A :class:`~ptx.source.Program` is one kernel of such a text.
A :class:`~ptx.machine.Launch` runs it on a :class:`~ptx.memory.GlobalMemory`:

    group     warps of 32 lanes that share local memory ("shared" in PTX); several groups are resident at a time
    warp      its lanes execute one instruction together, as arrays of 32 numbers. Where they diverge, those that are
              least far go first, so that they meet again as early as they can
    order     of warps and groups: random, from a seed that every finding names

What stops a run is a :class:`~ptx.findings.Finding`: a race, memory that nobody wrote, a copy that has not landed,
lanes that diverge where they must not, an address outside of all buffers. An instruction that the interpreter does not
know is an error that names it.

Not modelled: time, caches, and the rounding inside of mma.sync, which is computed in float64 and rounded once;
approximate functions (ex2.approx) are exact here. So the order of sums and the accesses are proven, the last bits of a
device are not.
All of it belongs to one thread.
"""

from .findings import Finding, UnknownInstruction
from .machine import Launch, Report
from .memory import GlobalMemory
from .source import Program, entries

__all__ = ["Finding", "GlobalMemory", "Launch", "Program", "Report", "UnknownInstruction", "entries"]

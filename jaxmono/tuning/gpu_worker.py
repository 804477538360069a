"""A child process that times kernels on the GPU: ``python -P .../gpu_worker.py``.

It is a program of its own: it imports nothing of jaxmono (nor JAX), so it starts fast and holds no
more of the GPU than its buffers. Requests are JSON objects, one a line:

    {"do": "open", "device": 0}              -> {"name", "sm_count", "l2_bytes"}
    {"do": "problem", "inputs": [[bytes, dtype], ...], "outputs": [[bytes, dtype], ...],
     "aliases": [[output, input], ...], "scratch": bytes}
                                             -> {"sets": n}
    {"do": "load", "id": i, "cubin": path, "name", "threads", "shared_bytes", "max_blocks",
     "blocks_per_sm", "min_blocks", "cooperative"}
                                             -> {"us", "difference"}: of its outputs from those
                                                of the first kernel of the problem
    {"do": "time", "id": i}                  -> {"us"}

Any answer may be {"error": text}; "fatal": true says that the process ends, because CUDA's context
is lost, and "machine": true that it is not the kernel's fault.

Inputs are normal random numbers (zeros would draw less power and run faster). There are so many
sets of buffers that together they exceed twice the L2, and launches take turns, so a launch finds
nothing of its inputs in the cache.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_POOL_BYTES = 8 << 20
_ROTATE = 2.2
"""Times the L2 that the sets of buffers exceed together."""
_MAX_SETS = 256
_TIMING_US = 500.0
"""Of launches in one timing, about: much more than the events' resolution."""
_MAX_LAUNCHES = 512
_SAMPLE_BYTES = 2 << 20
"""Of an output that are compared, at its begin and at its end."""
_SCALE = 0.25
"""Standard deviation of the inputs: sums of some thousand products stay far from overflow."""


class CudaError(RuntimeError):
    """A call of the CUDA driver failed."""


class MachineError(RuntimeError):
    """This GPU cannot measure this, whatever the kernel."""


@dataclass
class Kernel:
    """A loaded candidate, with a CUDA graph of one launch per turn (or None: plain launches)."""

    module: Any
    function: Any
    grid: int
    spec: dict[str, Any]
    graph: Any = None
    keep: list[Any] = field(default_factory=list)


class Bench:
    """The GPU, the buffers of one problem, its kernels."""

    def __init__(self, device: int) -> None:
        driver: Any = importlib.import_module("cuda.bindings.driver")
        self.d = driver
        self.check(driver.cuInit(0))
        self.device = self.check(driver.cuDeviceGet(device))
        self.context = self.check(driver.cuDevicePrimaryCtxRetain(self.device))
        self.check(driver.cuCtxSetCurrent(self.context))
        self.stream = self.check(driver.cuStreamCreate(
            driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.events = [self.check(driver.cuEventCreate(0)) for _ in range(2)]
        a = driver.CUdevice_attribute
        self.sm_count = self.attribute(a.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.l2_bytes = self.attribute(a.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
        self.memory: list[Any] = []
        self.pools: dict[str, Any] = {}
        self.kernels: dict[int, Kernel] = {}
        self.sets: list[list[int]] = []
        self.launches = 0
        self.reference: list[Any] | None = None
        """The outputs of the first kernel of the problem that ran, or None."""

    def check(self, result: tuple[Any, ...]) -> Any:
        status, *values = result
        if int(status) != 0:
            raise CudaError(f"CUDA: {status.name}")
        return values[0] if len(values) == 1 else values

    def is_well(self) -> bool:
        """After an error: the context still works, so the next kernel can be tried in it."""
        return int(self.d.cuCtxSynchronize()[0]) == 0

    def attribute(self, which: Any) -> int:
        return int(self.check(self.d.cuDeviceGetAttribute(which, self.device)))

    # ---- buffers -------------------------------------------------------------------------------

    def problem(self, inputs: list[tuple[int, str]], outputs: list[tuple[int, str]],
                aliases: list[tuple[int, int]], scratch: int) -> int:
        """Frees the last problem; allocates and fills the sets of buffers of a new one."""
        for kernel in self.kernels.values():
            self.unload(kernel)
        self.kernels.clear()
        for p in self.memory:
            self.check(self.d.cuMemFree(p))
        self.memory.clear()
        self.launches, self.reference = 0, None
        self.outputs, self.first_output, self.in_place = outputs, len(inputs), bool(aliases)
        taken = dict(aliases)
        each = sum(n for n, _ in inputs) + sum(
            n for i, (n, _) in enumerate(outputs) if i not in taken)
        count = max(2, min(_MAX_SETS, math.ceil(_ROTATE * self.l2_bytes / max(each, 1))))
        free, _ = self.check(self.d.cuMemGetInfo())
        count = min(count, int(0.8 * (free - scratch)) // max(each, 1))
        if count < 1:
            raise MachineError(f"{each + scratch} bytes of buffers do not fit the {free} bytes "
                               f"of GPU memory that are free")
        scratch_at = int(self.alloc(scratch)) if scratch else 0
        self.sets = []
        for turn in range(count):
            pointers = [self.filled(n, dtype, turn * 31 + i)
                        for i, (n, dtype) in enumerate(inputs)]
            pointers += [pointers[taken[i]] if i in taken else int(self.alloc(n))
                         for i, (n, _) in enumerate(outputs)]
            self.sets.append([*pointers, scratch_at] if scratch else pointers)
        self.check(self.d.cuCtxSynchronize())
        return count

    def alloc(self, size: int) -> Any:
        self.memory.append(self.check(self.d.cuMemAlloc(max(size, 256))))
        return self.memory[-1]

    def filled(self, size: int, dtype: str, seed: int) -> int:
        """Device memory with random values of a type, from a pool at another offset each time."""
        to = int(self.alloc(size))
        if dtype not in self.pools:
            values = random_values(dtype, _POOL_BYTES)
            pool = self.check(self.d.cuMemAlloc(values.nbytes))
            self.check(self.d.cuMemcpyHtoD(pool, values.ctypes.data, values.nbytes))
            self.check(self.d.cuCtxSynchronize())
            self.pools[dtype] = pool
        done, begin = 0, seed * 4096 % (_POOL_BYTES // 2)
        while done < size:
            part = min(size - done, _POOL_BYTES - begin)
            self.check(self.d.cuMemcpyDtoDAsync(to + done, int(self.pools[dtype]) + begin, part,
                                                self.stream))
            done, begin = done + part, 0
        return to

    # ---- kernels -------------------------------------------------------------------------------

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Loads a candidate, runs it once, compares its outputs with the reference's."""
        d = self.d
        module = self.check(d.cuModuleLoadData(Path(spec["cubin"]).read_bytes()))
        function = self.check(d.cuModuleGetFunction(module, spec["name"].encode()))
        a = d.CUfunction_attribute
        self.check(d.cuFuncSetAttribute(
            function, a.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, spec["shared_bytes"]))
        fit = int(self.check(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            function, spec["threads"], spec["shared_bytes"])))
        grid = min(min(fit, spec["blocks_per_sm"]) * self.sm_count, spec["max_blocks"])
        if fit and not spec["blocks_per_sm"]:  # a block a task
            grid = spec["max_blocks"]
        kernel = Kernel(module, function, grid, spec)
        self.kernels[spec["id"]] = kernel
        if grid < max(spec["min_blocks"], 1):
            raise CudaError(f"{grid} blocks of {spec['threads']} threads and "
                            f"{spec['shared_bytes']} bytes of shared memory are resident")
        results = [(p, n, t) for p, (n, t) in zip(
            self.sets[0][self.first_output:], self.outputs, strict=False)]  # then comes scratch
        for p, n, _ in results if not self.in_place else ():
            self.check(d.cuMemsetD8Async(p, 0xA5, n, self.stream))  # what is not written shows
        self.launch(kernel, 0)
        self.check(d.cuStreamSynchronize(self.stream))
        difference = 0.0
        if not self.in_place:
            found = [self.sample(*r) for r in results]
            if self.reference is None:
                self.reference = found
            else:
                difference = max(map(relative_difference, found, self.reference), default=0.0)
        if not self.launches:
            once = min(self.timed(lambda: self.launch(kernel, 0)) for _ in range(3))
            turns = max(1, round(_TIMING_US / (once * len(self.sets))))
            self.launches = min(turns * len(self.sets), max(_MAX_LAUNCHES, len(self.sets)))
        self.capture(kernel)
        return {"us": self.time(spec["id"]), "difference": difference}

    def launch(self, kernel: Kernel, turn: int) -> None:
        """One launch on the set of buffers whose turn it is."""
        s, d = kernel.spec, self.d
        pointers = np.array(self.sets[turn % len(self.sets)], np.uint64)
        parameters = np.array([pointers.ctypes.data], np.uint64)
        kernel.keep = [pointers, parameters]
        shape = (kernel.grid, 1, 1, s["threads"], 1, 1, s["shared_bytes"], self.stream,
                 parameters.ctypes.data)
        if s["cooperative"]:
            self.check(d.cuLaunchCooperativeKernel(kernel.function, *shape))
        else:
            self.check(d.cuLaunchKernel(kernel.function, *shape, 0))

    def launch_all(self, kernel: Kernel) -> None:
        for turn in range(self.launches):
            self.launch(kernel, turn)

    def capture(self, kernel: Kernel) -> None:
        """All launches of a timing as one CUDA graph: otherwise the host would be the slower."""
        d = self.d
        self.check(d.cuStreamBeginCapture(
            self.stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        try:
            self.launch_all(kernel)
            refused = False
        except CudaError:
            refused = True  # a driver that cannot capture cooperative launches
        status, graph = d.cuStreamEndCapture(self.stream)
        if refused or int(status) != 0:
            return
        kernel.graph = self.check(d.cuGraphInstantiate(graph, 0))
        self.check(d.cuGraphDestroy(graph))

    def time(self, number: int) -> float:
        """Microseconds per launch."""
        kernel = self.kernels[number]
        if kernel.graph is not None:
            total = self.timed(lambda: self.check(self.d.cuGraphLaunch(kernel.graph, self.stream)))
        else:
            total = self.timed(lambda: self.launch_all(kernel))
        return total / self.launches

    def timed(self, work: Any) -> float:
        d = self.d
        self.check(d.cuEventRecord(self.events[0], self.stream))
        work()
        self.check(d.cuEventRecord(self.events[1], self.stream))
        self.check(d.cuEventSynchronize(self.events[1]))
        return float(self.check(d.cuEventElapsedTime(*self.events))) * 1e3

    def unload(self, kernel: Kernel) -> None:
        if kernel.graph is not None:
            self.check(self.d.cuGraphExecDestroy(kernel.graph))
        self.check(self.d.cuModuleUnload(kernel.module))

    # ---- results -------------------------------------------------------------------------------

    def sample(self, pointer: int, size: int, dtype: str) -> Any:
        """The begin and the end of a buffer on the host, as f64."""
        parts: list[Any] = []
        head = min(size, _SAMPLE_BYTES)
        spans = [(0, head)] + ([(max(size - _SAMPLE_BYTES, head) // 16 * 16, size)]
                               if size > head else [])
        for begin, end in spans:
            host = np.empty(end - begin, np.uint8)
            self.check(self.d.cuMemcpyDtoH(host.ctypes.data, pointer + begin, host.nbytes))
            parts.append(host)
        return as_numbers(np.concatenate(parts), dtype)


_NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s8": np.int8, "s16": np.int16,
          "s32": np.int32, "s64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32,
          "u64": np.uint64}


_F8 = {"f8e4m3fn": (7, 256.0), "f8e5m2": (8, 1.0)}
"""Digits and factor by which f16 has more: its lower bits, and 8 less in the exponent."""


def random_values(dtype: str, size: int) -> Any:
    """``size`` bytes of a type: floats from a normal distribution, integers from 0 to 3."""
    rng = np.random.default_rng(0)
    if dtype == "bf16":
        bits = (rng.standard_normal(size // 2, np.float32) * _SCALE).view(np.uint32)
        return (bits >> 16).astype(np.uint16)
    if dtype in _F8:
        drop, scale = _F8[dtype]
        bits = (rng.standard_normal(size, np.float32) * (_SCALE / scale)).astype(np.float16)
        return (bits.view(np.uint16) >> 8 & 0x80 | (bits.view(np.uint16) & 0x7fff) >> drop).astype(
            np.uint8)
    if dtype == "pred":
        return rng.integers(0, 2, size).astype(np.uint8)
    if dtype in ("s4", "u4"):
        return rng.integers(0, 256, size).astype(np.uint8)
    t = np.dtype(_NUMPY.get(dtype, np.uint8))
    if t.kind == "f":
        return (rng.standard_normal(size // t.itemsize, np.float32) * _SCALE).astype(t)
    return rng.integers(0, 4, size // t.itemsize).astype(t)


def as_numbers(data: Any, dtype: str) -> Any:
    """Bytes of a type as f64."""
    if dtype == "bf16":
        whole = data[: data.size // 2 * 2].view(np.uint16).astype(np.uint32) << 16
        return whole.view(np.float32).astype(np.float64)
    if dtype in _F8:
        drop, scale = _F8[dtype]
        codes = data.view(np.uint8).astype(np.uint16)
        with np.errstate(invalid="ignore"):  # NaN
            x = ((codes & 0x7f) << drop).view(np.float16).astype(np.float64) * scale
        if dtype == "f8e4m3fn":  # the other's infinities and NaN are those of f16
            x[(codes & 0x7f) == 0x7f] = np.nan
        return np.where(codes & 0x80, -x, x)
    t = np.dtype(_NUMPY.get(dtype, np.uint8))
    return data[: data.size // t.itemsize * t.itemsize].view(t).astype(np.float64)


def relative_difference(x: Any, y: Any) -> float:
    """Norm of the difference by the norm of the second, over what is finite in both.

    Infinite where more than one in a thousand is finite in one of them only.
    """
    both = np.isfinite(x) & np.isfinite(y)
    if (np.isfinite(x) ^ np.isfinite(y)).sum() > x.size / 1000:
        return math.inf
    norm = float(np.linalg.norm(y[both]))
    off = float(np.linalg.norm(x[both] - y[both]))
    return off / norm if norm > 0 else (0.0 if off == 0 else math.inf)


class Session:
    """Answers requests."""

    def __init__(self) -> None:
        self.bench: Bench | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        kind = request["do"]
        if kind == "open":
            self.bench = Bench(request["device"])
            name = self.bench.check(self.bench.d.cuDeviceGetName(256, self.bench.device))
            return {"name": bytes(name).split(b"\0")[0].decode(), "sm_count": self.bench.sm_count,
                    "l2_bytes": self.bench.l2_bytes}
        bench = self.bench
        assert bench is not None
        if kind == "problem":
            return {"sets": bench.problem(
                [(int(n), t) for n, t in request["inputs"]],
                [(int(n), t) for n, t in request["outputs"]],
                [(int(o), int(i)) for o, i in request["aliases"]], int(request["scratch"]))}
        if kind == "load":
            return bench.load(request)
        return {"us": bench.time(request["id"])}

    def is_well(self) -> bool:
        """After an error: the next kernel can be tried."""
        return self.bench is not None and self.bench.is_well()


def main() -> None:
    out = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no answer
    session = Session()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = session.answer(request)
        except (CudaError, MachineError, ImportError, OSError) as error:
            reply = {"error": str(error), "machine": request["do"] in ("open", "problem"),
                     "fatal": not session.is_well()}
        out.write(json.dumps(reply) + "\n")
        out.flush()
        if reply.get("fatal"):
            return


if __name__ == "__main__":
    main()

"""A CUDA driver without a GPU, for `gpu_worker`: ``python fake_cuda.py <gpu_worker.py>``.

Device memory is the host's. A "cubin" is JSON that tells what its kernel does: ``us`` per launch,
``value`` written to the first output, ``do``: "hang", "exit", "fault" (the context is lost),
"refuse" (the module does not load) or "no capture".
"""

from __future__ import annotations

import ctypes
import enum
import json
import os
import runpy
import sys
import time
import types
from typing import Any

CLOCK = [0.0]
LOST = [False]
CAPTURE: list[list[float]] = []
MEMORY: dict[int, Any] = {}
L2_BYTES = 1 << 20


class Status(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


class Names:
    """Any attribute is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


def ok(*values: Any) -> tuple[Any, ...]:
    return (Status.CUDA_ERROR_ILLEGAL_ADDRESS if LOST[0] else Status.CUDA_SUCCESS, *values)


def alloc(size: int) -> tuple[Any, ...]:
    buffer = ctypes.create_string_buffer(size)
    MEMORY[ctypes.addressof(buffer)] = buffer
    return ok(ctypes.addressof(buffer))


def free(p: int) -> tuple[Any, ...]:
    del MEMORY[p]
    return ok()


def load(image: bytes) -> tuple[Any, ...]:
    kernel = json.loads(image)
    if kernel.get("do") == "refuse":
        return (Status.CUDA_ERROR_INVALID_IMAGE, None)
    return ok(kernel)


def launch(kernel: dict[str, Any], *rest: Any) -> tuple[Any, ...]:
    do = kernel.get("do")
    if do == "hang":
        time.sleep(60)
    if do == "exit":
        sys.stderr.write("a segmentation fault, say\n")
        os._exit(139)
    if do == "fault":
        LOST[0] = True
        return ok()
    if CAPTURE and do == "no capture":
        return (Status.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
    (pointers,) = (ctypes.c_uint64 * 1).from_address(rest[8])
    buffers = (ctypes.c_uint64 * 3).from_address(pointers)  # of a product: two inputs
    out = MEMORY[buffers[2]]
    (ctypes.c_float * (len(out) // 4)).from_buffer(out)[:] = [kernel["value"]] * (len(out) // 4)
    if CAPTURE:
        CAPTURE[-1].append(kernel["us"])
    else:
        CLOCK[0] += kernel["us"]
    return ok()


def replay(graph: list[float], stream: Any) -> tuple[Any, ...]:
    CLOCK[0] += sum(graph)
    return ok()


def record(event: list[float], stream: Any) -> tuple[Any, ...]:
    event[0] = CLOCK[0]
    return ok()


def moved(to: int, source: int, size: int, *rest: Any) -> tuple[Any, ...]:
    ctypes.memmove(to, source, size)
    return ok()


def begin_capture(*rest: Any) -> tuple[Any, ...]:
    CAPTURE.append([])
    return ok()


def fill(p: int, byte: int, size: int, *rest: Any) -> tuple[Any, ...]:
    ctypes.memset(p, byte, size)
    return ok()


def attribute(which: str, device: Any) -> tuple[Any, ...]:
    return ok(L2_BYTES if "L2" in which else 4)


def main() -> None:
    driver: Any = types.ModuleType("cuda.bindings.driver")
    for name in ("CUstream_flags", "CUdevice_attribute", "CUfunction_attribute",
                 "CUstreamCaptureMode"):
        setattr(driver, name, Names())
    nothing = ("cuInit", "cuCtxSetCurrent", "cuStreamSynchronize", "cuCtxSynchronize",
               "cuFuncSetAttribute", "cuGraphDestroy", "cuGraphExecDestroy", "cuModuleUnload",
               "cuEventSynchronize")
    for name in nothing:
        setattr(driver, name, lambda *_: ok())
    for name in ("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuStreamCreate"):
        setattr(driver, name, lambda *_: ok(0))
    driver.cuEventCreate = lambda flags: ok([0.0])
    driver.cuDeviceGetAttribute = attribute
    driver.cuDeviceGetName = lambda n, device: ok(b"Fake GPU\0\0")
    driver.cuMemGetInfo = lambda: ok(int(os.environ.get("FAKE_FREE", 1 << 30)), 1 << 30)
    driver.cuMemAlloc, driver.cuMemFree, driver.cuMemsetD8Async = alloc, free, fill
    driver.cuMemcpyHtoD = driver.cuMemcpyDtoH = driver.cuMemcpyDtoDAsync = moved
    driver.cuModuleLoadData, driver.cuModuleGetFunction = load, lambda module, name: ok(module)
    driver.cuOccupancyMaxActiveBlocksPerMultiprocessor = lambda *_: ok(1)
    driver.cuLaunchKernel = driver.cuLaunchCooperativeKernel = launch
    driver.cuStreamBeginCapture = begin_capture
    driver.cuStreamEndCapture = lambda stream: ok(CAPTURE.pop())
    driver.cuGraphInstantiate = lambda graph, flags: ok(graph)
    driver.cuGraphLaunch = replay
    driver.cuEventRecord = record
    driver.cuEventElapsedTime = lambda a, b: ok((b[0] - a[0]) / 1e3)
    sys.modules["cuda.bindings.driver"] = driver
    runpy.run_path(sys.argv[1], run_name="__main__")


if __name__ == "__main__":
    main()

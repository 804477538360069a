"""Launches that overlap (programmatic stream serialization) still see all that was before them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness_graphs import graph, value

import jaxmono
from jaxmono.codegen import cuda_target, generate
from jaxmono.codegen.nvrtc import compile_cuda
from jaxmono.codegen.target import arch_of
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device
from jaxmono.tuning.gpu_worker import Bench

ROWS, COLUMNS = 4096, 2048
"""16 MB of bf16: blocks end at different times, and each reads what another one wrote last."""
IN_COMMAND_BUFFERS = {"xla_gpu_enable_command_buffer": "FUSION,CUSTOM_CALL",
                      "xla_gpu_graph_min_graph_size": 1}

LATE = """
extern "C" __global__ void late(float* x, int n) {
  asm volatile("griddepcontrol.launch_dependents;");
  const long long begin = clock64();
  while (clock64() - begin < 400000) {}
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = 2;
}
"""


def turned(x: jax.Array) -> jax.Array:
    """Every element is what the last launch wrote at the other end."""
    return jnp.flip(x, (0, 1)) * 0.5 + 1.0


def product(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x[::-1] @ w)


def normed(x: jax.Array) -> jax.Array:
    """Two stages: a cooperative launch between those that overlap."""
    x = x / (1 + jnp.sum(jnp.abs(x), 0) / ROWS)
    return x / (1 + jnp.sum(jnp.abs(x), 1, keepdims=True) / COLUMNS)


def chain(step: Callable[[Callable[..., Any]], Any], x: jax.Array, w: jax.Array,
          n: int = 12) -> jax.Array:
    """Kernels of jaxmono and of XLA one behind the other; ``step`` makes callables of them."""
    mine = step(jaxmono.jit(turned)), step(jaxmono.jit(product)), step(jaxmono.jit(normed))
    xla = step(jax.jit(lambda x: jnp.flip(x, 1) - 0.25))
    for i in range(n):
        x = mine[0](x)
        x = mine[1](x, w)
        x = xla(x) if i % 2 else mine[2](x)
        x = mine[0](x)
        x = mine[0](x)
    return x


def given() -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    return (jnp.asarray(rng.standard_normal((ROWS, COLUMNS)), jnp.bfloat16),
            jnp.asarray(rng.standard_normal((COLUMNS, COLUMNS)) * 0.02, jnp.bfloat16))


def waited(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jax.block_until_ready(f(*args))


@pytest.mark.parametrize("f", [turned, product])
def test_such_kernels_are_overlapping_ones(f: Callable[..., Any]) -> None:
    args = given()[:f.__code__.co_argcount]
    compiled = jaxmono.jit(f).lower(*args).compile()
    assert "launch_order();" in compiled.as_text("cuda")


def test_queued_launches_are_in_order() -> None:
    x, w = given()
    expected = np.asarray(chain(waited, x, w), np.float32)
    for _ in range(20):
        found = np.asarray(chain(lambda f: f, x, w), np.float32)
        np.testing.assert_array_equal(found, expected)


def test_launches_in_a_command_buffer_are_in_order() -> None:
    x, w = given()
    expected = np.asarray(chain(waited, x, w), np.float32)
    whole = jax.jit(lambda x, w: chain(lambda f: f, x, w)).lower(x, w).compile(
        compiler_options=IN_COMMAND_BUFFERS)
    for _ in range(5):
        np.testing.assert_allclose(np.asarray(whole(x, w), np.float32), expected,
                                   rtol=0.02, atol=0.02)


def test_a_launch_waits_for_a_kernel_that_lets_it_begin_before_it_writes() -> None:
    """What libraries do, and no kernel of XLA or jaxmono: there the driver alone decides."""
    d: Any = pytest.importorskip("cuda.bindings.driver")
    bench, n = Bench(0), 1 << 16
    arch = arch_of(*(bench.attribute(getattr(
        d.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{x}"))
        for x in ("MAJOR", "MINOR")))
    sum_of = graph([value((n,))], lambda b, x: b.elementwise("add", x, x))
    program = generate(make_plan(sum_of, Device()), cuda_target(arch), Device(), "sum")
    assert program.overlaps

    def function(cubin: bytes, name: str) -> Any:
        module = bench.check(d.cuModuleLoadData(cubin))
        return bench.check(d.cuModuleGetFunction(module, name.encode()))

    def launch(f: Any, blocks: int, threads: int, shared: int, parameters: Any, *,
               overlaps: bool) -> None:
        config = d.CUlaunchConfig()
        config.gridDimX, config.blockDimX, config.sharedMemBytes = blocks, threads, shared
        config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.hStream = bench.stream
        if overlaps:
            early = d.CUlaunchAttribute()
            early.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            early.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [early], 1
        bench.check(d.cuLaunchKernelEx(config, f, parameters, 0))

    x, y = (int(bench.alloc(4 * n)) for _ in range(2))
    bench.check(d.cuMemsetD8Async(x, 0, 4 * n, bench.stream))
    late = function(compile_cuda(LATE, arch).cubin, "late")
    buffers = np.array([x, y], np.uint64)
    own = np.array([buffers.ctypes.data], np.uint64)
    doubled = function(program.binary, program.name)  # loading waits for what runs
    launch(late, 8, 256, 0, ((x, n), (ctypes.c_void_p, ctypes.c_int)), overlaps=False)
    launch(doubled, min(program.max_blocks, 64), program.threads, program.shared_bytes,
           own.ctypes.data, overlaps=True)
    found = np.empty(n, np.float32)
    bench.check(d.cuStreamSynchronize(bench.stream))
    bench.check(d.cuMemcpyDtoH(found.ctypes.data, y, found.nbytes))
    np.testing.assert_array_equal(found, 4)

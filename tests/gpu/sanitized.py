"""Runs generated kernels and next to nothing else, for `compute-sanitizer` to watch.

    PYTHONPATH=.:tests python tests/gpu/sanitized.py [ordered] [images:DTYPE] [taps:DTYPE] \\
        [rows:DTYPE] [quantised:DTYPE] [fours:DTYPE] [diffusion:DTYPE] [gated:DTYPE] \\
        [exact:DTYPE] [dense:DTYPE] [transforms:DTYPE] [learning:DTYPE] NUMBER... \\
        MODEL:BATCH[:DTYPE]...

The batches of random programs with these numbers, a tiny BERT and a tiny decoder beside them, and
models of the yardstick at their published sizes. ``images``: convolutions with channels first, and
rows that read windows. ``taps``: convolutions whose image stays in shared memory. ``rows``:
products whose rows are no multiples of 16 bytes. ``quantised``: weights of bytes; ``fours``: of
4 bits, with scales of groups. ``diffusion``: a level of a UNet. ``gated``: tiles of columns of two
halves. ``exact``: products of f32 at precision HIGHEST. ``dense``: a block of DenseNet.
``transforms``: Fourier's, of every kind of length. ``learning``: a step behind a large gradient.
``ordered``: with what racecheck sees the order of producers and consumers by (JM_RACECHECK in
device/roles.cuh), in kernels that no cache keeps.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from batches import batch
from jax import lax
from small_models import bert_data, opt_data, unet_data
from test_convolutions import IMAGES, channels_first
from test_unaligned import einsums, operands

import jaxmono
from benchmarks import data
from benchmarks.workloads import find
from examples.models import bert, opt, unet
from jaxmono.codegen import compile as compiling
from jaxmono.fusion import region_size


def run(function: Any, args: Any) -> None:
    """One call on the GPU, which has to be generated kernels as far as they go."""
    compiled = jaxmono.jit(function).lower(*args).compile()
    out = jax.device_get(compiled(*jax.device_put(args, jax.devices()[0])))
    kernels = compiled.explain().kernels
    sys.stdout.write(f"{kernels} kernels, {len(jax.tree.leaves(out))} results\n")


def model(spec: str) -> data.Data:
    """``"resnet50:4"``, ``"resnet50:4:f32"``: the workload with random data."""
    name, batch_size, *dtype = spec.split(":")
    workload = find(name)
    return data.make(data.Case(workload, int(batch_size), *(dtype or [workload.dtype])), sets=1)


def images(dtype: str) -> None:
    """Turned copies, gathered parts of an image, windows of several places at a time."""
    def block(x: jax.Array, w: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=x.shape[-1],
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y - y.mean(-1, keepdims=True)

    rng = np.random.default_rng(0)
    for function, *shapes in ((channels_first, (4, 3, 224, 224), (64, 3, 7, 7), (64, 64, 3, 3),
                               (128, 64, 1, 1)), (block, (2, 56, 56, 96), (7, 7, 1, 96))):
        run(function, tuple(rng.standard_normal(s).astype(jnp.dtype(dtype)) for s in shapes))


def taps(dtype: str) -> None:
    """Lines and boxes, windows in the epilogue, weights that stay, channels that begin anywhere;
    layers behind each other, whose rings go on or are others."""
    def layers(x: jax.Array, *weights: jax.Array) -> jax.Array:
        for w in weights:
            x = jax.nn.relu(lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        return x

    rng = np.random.default_rng(0)
    for function, *shapes in (
            *((f, shape, kernel, kernel[-1:]) for f, shape, kernel in IMAGES.values()),
            (layers, (32, 28, 28, 96), *((3, 3, 96, 96),) * 3, (3, 3, 96, 128), (3, 3, 128, 96))):
        run(function, tuple(rng.standard_normal(s).astype(jnp.dtype(dtype)) for s in shapes))


def rows(dtype: str) -> None:
    """Copies of 8 and 4 bytes, lines that are shifted, padded copies, rows that end in a piece."""
    for sizes in ((300, 196, 316), (300, 198, 322), (300, 197, 321), (2048, 1001, 257),
                  (17, 1003, 769), (1, 1002, 1023)):
        run(einsums, operands(*sizes, jnp.dtype(dtype)))


def quantised(dtype: str) -> None:
    """Streams of bytes, tiles of them beside rows of 16 bits (that are computed, too) and of
    bytes; shares of k."""
    t = jnp.dtype(dtype)

    def block(x: jax.Array, w: jax.Array, u: jax.Array, v: jax.Array, s: jax.Array) -> jax.Array:
        gate, up = jnp.split(x @ (w.astype(t) * s.astype(t)), 2, axis=1)
        y = (jax.nn.silu(gate) * up) @ u.astype(t) * s[:512].astype(t)
        q = jnp.round(jnp.clip(y.astype(jnp.float32), -1, 1) * 127).astype(jnp.int8)
        return jnp.dot(q, v, preferred_element_type=jnp.int32).astype(jnp.float32) * s[:768]

    rng = np.random.default_rng(0)
    shapes = (512, 4096), (2048, 512), (512, 768)
    weights = [rng.integers(-127, 128, s, np.int8) for s in shapes]
    scale = rng.uniform(1e-3, 2e-3, 4096).astype(np.float32)
    for m in (1, 4, 16, 48, 100, 400):
        run(block, (rng.standard_normal((m, 512)).astype(t), *weights, scale))


def fours(dtype: str) -> None:
    """Streams of 4 bits in both layouts, behind a norm and with flags between them, tiles of them,
    shares of k; scales of groups, and of columns."""
    t, groups = jnp.dtype(dtype), 128

    def block(x: jax.Array, w: jax.Array, s: jax.Array, u: jax.Array, v: jax.Array, r: jax.Array,
              ) -> jax.Array:
        y = x - x.mean(-1, keepdims=True)
        wide = w.reshape(-1, groups, w.shape[1]).astype(t) * s[:, None].astype(t)
        gate, up = jnp.split(y @ wide.reshape(w.shape), 2, axis=1)
        z = (jax.nn.silu(gate) * up) @ u.astype(t)
        turned = v.reshape(v.shape[0], -1, groups).astype(t) * r[..., None].astype(t)
        return jnp.einsum("mk,nk->mn", z, turned.reshape(v.shape)) + x

    rng = np.random.default_rng(0)
    w, u, v = (jnp.asarray(rng.integers(-8, 8, s, np.int8)).astype(jnp.int4)
               for s in ((512, 4096), (2048, 512), (512, 512)))
    s, r = (rng.uniform(1e-3, 2e-3, s).astype(np.float32) for s in ((4, 4096), (512, 4)))
    for m in (1, 4, 16, 100):
        run(block, (rng.standard_normal((m, 512)).astype(t), w, s, u, v, r))


def diffusion(dtype: str) -> None:
    """Gates in the epilogue of the second of two products, groups' norms, several places of which
    a thread takes, joined channels; twice, the second time in several kernels."""
    case = unet_data(2, unet.UNetConfig((320,), blocks=1, size=32), dtype=dtype, sets=1)
    run(case.program.step, case.arguments())
    region_size.MOST_LINES, region_size.LEAST_US = 1600, 0.0
    run(case.program.step, case.arguments())


def gated(dtype: str) -> None:
    """Weights [k, n] and [n, k], of two buffers; tiles of 128 and 256 columns."""
    def block(x: jax.Array, v: jax.Array, w: jax.Array, u: jax.Array) -> jax.Array:
        y = jax.nn.silu(x @ v) * (x @ w)
        g, h = jnp.split(y @ u.T, 2, axis=-1)
        return g * jax.nn.sigmoid(h)

    rng = np.random.default_rng(0)
    for shapes in (((1111, 328), (328, 1096), (328, 1096), (2056, 1096)),
                   ((2048, 640), (640, 2048), (640, 2048), (4096, 2048))):
        run(block, tuple(rng.standard_normal(s).astype(jnp.dtype(dtype)) for s in shapes))


def exact(dtype: str) -> None:
    """Products in parts of bf16: rows that are gathered, lie [k][m], begin anywhere, are a batch's
    own; shares of k, and sums that are made once more."""
    def block(x: jax.Array, w: jax.Array, u: jax.Array, v: jax.Array) -> Any:
        y = jax.nn.relu(lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        y = y.reshape(-1, y.shape[-1])
        z = y @ u
        halves = z.reshape(2, -1, z.shape[-1])
        return z, y.T @ z, jnp.einsum("bmk,bnk->bmn", halves[:, :256], halves[:, 256:512]), z @ v

    rng = np.random.default_rng(0)
    shapes = (2, 28, 28, 32), (3, 3, 32, 64), (64, 257), (257, 192)
    given = [rng.standard_normal(s).astype(jnp.dtype(dtype)) for s in shapes]
    given[3][5, 7] = np.inf
    with jax.default_matmul_precision("highest"):
        run(block, given)


def dense(dtype: str) -> None:
    """A dense block: joined parts whose norms consumers compute, weights of f32 that producers
    round, or loaders, before a barrier opens."""
    t = jnp.dtype(dtype)

    def block(x: jax.Array, *weights: jax.Array) -> jax.Array:
        for w, s, u in zip(weights[::3], weights[1::3], weights[2::3], strict=True):
            y = jax.nn.relu((x.astype(jnp.float32) * s).astype(t)) @ w.astype(t)
            y = lax.conv_general_dilated(jax.nn.relu(y), u.astype(t), (1, 1), "SAME",
                                         dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jnp.concatenate([x, y], -1)
        return x

    rng = np.random.default_rng(0)
    shapes = [s for i in range(4) for s in ((128 + 32 * i, 128), (128 + 32 * i,), (3, 3, 128, 32))]
    run(block, (rng.standard_normal((1, 14, 14, 128)).astype(t),
                *((rng.standard_normal(s) / 16).astype(np.float32) for s in shapes)))


def transforms(dtype: str) -> None:
    """Lines of few and many elements a thread, of pairs, with factors that are large primes, in
    two steps, of columns."""
    rng = np.random.default_rng(0)
    for shape in ((300, 60), (300, 349), (70, 1001), (9, 4096), (2, 9600), (1, 1 << 17)):
        x = rng.standard_normal(shape).astype(jnp.dtype(dtype))
        run(lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 1j, x.shape[-1]), (x,))
        run(lambda x: jnp.fft.ifft(jax.lax.complex(x, x + 1)), (x,))
    for shape in ((64, 101, 48), (3, 256, 200)):
        run(jnp.fft.fft2, (rng.standard_normal(shape).astype(jnp.dtype(dtype)),))


def learning(dtype: str) -> None:
    """Warpgroups with tasks of their own, some of which end beyond the last column."""
    def momentum(x: jax.Array, dy: jax.Array, w: jax.Array, m: jax.Array) -> Any:
        m = 0.9 * m + (x.T @ dy).astype(jnp.float32)
        return w - 1e-3 * m, m

    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((136, n)).astype(jnp.dtype(dtype)) for n in (4096, 2200))
    # 192 sums a thread, which leave without shared memory.
    run(lambda x, y, b: jax.nn.relu(x.T @ y + b), (x, dy, dy[0]))
    run(momentum, (x, dy, *(rng.standard_normal((4096, 2200)).astype(np.float32)
                            for _ in range(2))))


def show_order() -> None:
    """Every text from here on is one for racecheck."""
    bundle = compiling.bundle
    compiling.bundle = lambda source: "#define JM_RACECHECK\n" + bundle(source)
    os.environ["JAXMONO_CACHE_DIR"] = tempfile.mkdtemp()


def main(what: list[str]) -> None:
    """Everything; what is not a generated kernel is prepared on the CPU."""
    if "ordered" in what:
        show_order()
        what = [spec for spec in what if spec != "ordered"]
    for name, function in (("images:", images), ("taps:", taps), ("rows:", rows),
                           ("quantised:", quantised), ("fours:", fours),
                           ("diffusion:", diffusion), ("gated:", gated),
                           ("exact:", exact), ("dense:", dense), ("transforms:", transforms),
                           ("learning:", learning)):
        for spec in [spec for spec in what if spec.startswith(name)]:
            function(spec.removeprefix(name))
            what.remove(spec)
    with jax.default_device(jax.devices("cpu")[0]):
        tiny = [bert_data(2, length=16, config=bert.tiny(), sets=1),
                opt_data(length=16, config=opt.tiny(), sets=1)]
        cases = [*(tiny if any(":" not in spec for spec in what) else ()),
                 *(model(spec) for spec in what if ":" in spec)]
        arguments = [jax.tree.map(np.asarray, case.arguments()) for case in cases]
    for case, args in zip(cases, arguments, strict=True):
        run(case.program.step, args)
    for number in what:
        if ":" not in number:
            programs = batch(int(number))
            with programs.context():
                run(programs.fun, (programs.args,))


if __name__ == "__main__":
    main(sys.argv[1:])

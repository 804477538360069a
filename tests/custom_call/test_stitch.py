"""The rewritten body: order, aliases, scratch, several results, and what the checks catch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_by_op import OpByOp, program, using, wrap

from jaxmono._errors import CompileError, JaxmonoWarning, UnsupportedError
from jaxmono.custom_call.compiler import CompileResult, Region
from jaxmono.hlo import ops
from jaxmono.hlo.importer import Imported
from jaxmono.hlo.ir import Value

UPDATE = """
extern "C" int jaxmono_emulate(void* const* buf, int, unsigned long long, char*, int) {
  // cache (in place), x -> cache, sum; scratch
  if (buf[2] != buf[0]) return 1;
  float* cache = (float*)buf[2];
  const float* x = (const float*)buf[1];
  float* sum = (float*)buf[3];
  unsigned char* scratch = (unsigned char*)buf[4];
  for (int i = 0; i < 1000; ++i) scratch[i] = 0xAB;
  sum[0] = 0;
  for (int i = 0; i < 6; ++i) sum[0] += cache[i] += x[i];
  return 0;
}
"""

FAILING = """
#include <stdio.h>
extern "C" int jaxmono_emulate(void* const*, int, unsigned long long, char* error, int bytes) {
  snprintf(error, bytes, "deadlock: 3 threads wait at line 7");
  return 1;
}
"""


class Whole:
    """The whole function as one kernel around given source."""

    def __init__(self, source: str, **changes: Any) -> None:
        self.source, self.changes = source, changes

    def compile_regions(self, imported: Imported, options: Any, platform: str) -> CompileResult:
        graph = imported.graph
        region = Region(tuple(range(len(graph.ops))), graph.inputs, graph.outputs)
        made = program(self.source, [v.type for v in region.inputs],
                       [v.type for v in region.outputs], **self.changes)
        return CompileResult((region,), (made,))

    def observe(self, *args: Any) -> None:
        raise AssertionError("nothing stays with XLA here")


def test_alias_scratch_and_two_results() -> None:
    """An updated buffer keeps its place, and scratch is a buffer of its own."""
    with using(Whole(UPDATE, aliases=((0, 0),), scratch_bytes=1000)):
        step = wrap(lambda cache, x: (cache + x, (cache + x).sum()), donate_argnums=0)
        cache = jnp.arange(6, dtype=jnp.float32)
        pointer = cache.unsafe_buffer_pointer()
        for n in range(1, 4):
            cache, total = step(cache, jnp.ones(6))
            np.testing.assert_array_equal(cache, np.arange(6) + n)
            assert total == cache.sum()
        assert cache.unsafe_buffer_pointer() == pointer
        text = step.lower(cache, jnp.ones(6)).as_text()
    assert "tensor<1000xui8>" in text
    assert "output_tuple_indices = [0], operand_index = 0" in text


def test_alias_without_donation_copies() -> None:
    with using(Whole(UPDATE, aliases=((0, 0),), scratch_bytes=1000)):
        step = wrap(lambda cache, x: (cache + x, (cache + x).sum()))
        cache = jnp.arange(6, dtype=jnp.float32)
        out, _ = step(cache, jnp.ones(6))
        np.testing.assert_array_equal(cache, np.arange(6))
        np.testing.assert_array_equal(out, np.arange(6) + 1)


def test_error_of_a_running_kernel_names_it() -> None:
    message = r"mono_f.*deadlock: 3 threads"
    with (using(Whole(FAILING, name="mono_f")),
          pytest.raises(jax.errors.JaxRuntimeError, match=message)):
        wrap(lambda x: x + x)(jnp.ones(3)).block_until_ready()


def broken(change: str) -> Any:
    """OpByOp with a mistake in its answer."""

    class Broken(OpByOp):
        def compile_regions(self, imported: Imported, options: Any,
                            platform: str) -> CompileResult:
            made = super().compile_regions(imported, options, platform)
            region, kernel = made.regions[0], made.programs[0]
            if change == "raises":
                raise RuntimeError("no way\nthrough")
            if change == "no program":
                return CompileResult(made.regions, ())
            if change == "types":
                region = Region(region.op_indices, region.inputs[:0], region.outputs)
            elif change == "value":
                region = Region(region.op_indices, (Value(region.inputs[0].type),) * 2,
                                region.outputs)
            elif change == "cycle":
                last = imported.graph.outputs[0]
                region = Region(region.op_indices, (last, last), region.outputs)
            elif change == "binary":
                kernel = program("int other;", list(kernel.inputs), list(kernel.outputs))
            elif change == "not a library":
                kernel = program("int other;", list(kernel.inputs), list(kernel.outputs),
                                 binary=b"no ELF")
            return CompileResult((region,), (kernel,))

    return Broken()


CHANGES = {
    "raises": "no way through", "no program": "2 regions came with 0 programs",
    "types": r"reads \(f32\[3\], f32\[3\]\)", "value": "KeyError",
    "cycle": "not convex", "binary": "does not export jaxmono_emulate",
    "not a library": "could not be loaded",
}


def fun(x: Any) -> Any:
    return jnp.sort(x + x) * x


@pytest.mark.sampled(5)
@pytest.mark.parametrize("change", CHANGES)
def test_failure_is_one_warning_and_the_right_result(change: str) -> None:
    x = jnp.asarray([3.0, 1.0, 2.0])
    with using(broken(change)), pytest.warns(JaxmonoWarning, match=CHANGES[change]) as caught:
        out = wrap(fun, on_unsupported="xla")(x)
    np.testing.assert_array_equal(out, fun(x))
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "\n" not in message and "fun" in message and "on_unsupported='error'" in message


@pytest.mark.parametrize("change", CHANGES)
def test_failure_raises_where_asked(change: str) -> None:
    with using(broken(change)), pytest.raises(CompileError) as caught:
        wrap(fun, on_unsupported="error")(jnp.ones(3))
    assert caught.match(CHANGES[change].replace("no way through", "no way"))


def test_unsupported_error_passes_unchanged() -> None:
    class Refuses(OpByOp):
        def compile_regions(self, imported: Any, options: Any, platform: str) -> CompileResult:
            raise UnsupportedError("sort at line 3")

    with using(Refuses()), pytest.raises(UnsupportedError, match="sort at line 3"):
        wrap(fun)(jnp.ones(3))


def test_a_constant_needed_on_both_sides_is_kept() -> None:
    class Sloppy(OpByOp):
        """Claims constants and broadcasts for its region although a sort outside needs them."""

        def compile_regions(self, imported: Imported, options: Any,
                            platform: str) -> CompileResult:
            made = super().compile_regions(imported, options, platform)
            cheap = tuple(i for i, op in enumerate(imported.graph.ops)
                          if isinstance(op, ops.Constant | ops.BroadcastInDim))
            first = made.regions[0]
            return CompileResult((Region((*cheap, *first.op_indices), first.inputs,
                                         first.outputs), *made.regions[1:]), made.programs)

    def g(x: Any) -> Any:
        return jnp.concatenate([x + 2.0, jnp.full(3, 2.0)])

    with using(Sloppy()):
        np.testing.assert_array_equal(wrap(g)(jnp.ones(3)), g(jnp.ones(3)))


def test_dead_ops_of_a_kernel_are_gone() -> None:
    def g(x: Any) -> Any:
        return (x + x) * (x - x) / x

    with using(OpByOp()):
        text = wrap(g).lower(jnp.ones(3)).as_text()
    assert text.count("stablehlo.") == 4 == text.count("custom_call @jaxmono_interpret")


@pytest.mark.parametrize("blocks", [1, 3])
def test_blocks_and_seed_reach_the_interpreter(monkeypatch: pytest.MonkeyPatch,
                                               blocks: int) -> None:
    source = """
    extern "C" int jaxmono_emulate(void* const* buf, int blocks, unsigned long long seed, char*,
                                   int) {
      ((unsigned long long*)buf[1])[0] = blocks;
      ((unsigned long long*)buf[1])[1] = seed;
      return 0;
    }"""
    seed = 2**64 - 5
    monkeypatch.setenv("JAXMONO_INTERPRET_BLOCKS", str(blocks))
    monkeypatch.setenv("JAXMONO_INTERPRET_SEED", str(seed))
    with using(Whole(source)), jax.enable_x64(True):
        out = wrap(lambda x: x + x)(jnp.zeros(2, jnp.uint64))
    assert out.tolist() == [blocks, seed]

"""The parts of benchmarks/ that need no GPU: what is counted and compared is what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.profiler import ProfileData

from benchmarks import results
from benchmarks.cases import Case
from benchmarks.device_profile import NoDeviceTrace, read
from benchmarks.errors import distance, error, references
from benchmarks.sides import Runner, chained


def counting_case() -> Case:
    """``out = ids * w + carry``; the carry counts the calls."""

    def step(state: Any, carry: Any, ids: jax.Array) -> Any:
        return ids * state + carry, carry + 1

    inputs = tuple((jnp.full((4,), i, jnp.int32),) for i in (1, 2, 3))
    weight = jnp.float32(0.5)
    return Case("counting", "counting", step, weight, step, weight, jnp.float32(0), inputs)


def test_runner_rotates_inputs_and_hands_the_carry_on() -> None:
    case = counting_case()
    runner = Runner(jax.jit(case.step, donate_argnums=1), case)
    assert [float(runner()[0]) for _ in range(4)] == [0.5, 2.0, 3.5, 3.5]
    assert not case.carry.is_deleted()


def test_chained_calls_equal_single_calls() -> None:
    case = counting_case()
    single = Runner(jax.jit(case.step, donate_argnums=1), case)
    many = Runner(chained(case.step, 3), case, stack=3)
    np.testing.assert_array_equal([o[0] for o in many()], [float(single()[0]) for _ in range(3)])


def test_chained_calls_depend_on_each_other_and_none_is_left_out() -> None:
    """Nothing may be computed once for all calls, in another order, or not at all."""
    def step(state: Any, carry: Any, ids: jax.Array) -> Any:
        return jnp.tanh(jnp.sin(ids * state) @ state), carry

    ids = jnp.ones((4, 8, 8), jnp.int32)
    text = chained(step, 4).lower(jnp.ones((8, 8)), (), ids).compile().as_text() or ""
    single = jax.jit(step).lower(jnp.ones((8, 8)), (), ids[0]).compile().as_text() or ""
    assert text.count(" dot(") + text.count("__ynn") >= 4 * max(
        1, single.count(" dot(") + single.count("__ynn"))


def test_error_sees_nan_and_wrong_caches() -> None:
    case = counting_case()
    wanted = references(case)
    right = error(case, case.step, wanted)
    assert right.relative == right.largest == 0 and right.lowest_cosine is None
    wrong_out = error(case, lambda s, c, x: (x * s * 1.5 + c, c + 1), wanted)
    assert wrong_out.relative == pytest.approx(0.5) and wrong_out.largest == pytest.approx(0.75)
    assert error(case, lambda s, c, x: (x * s + c, c + 2), wanted).relative == pytest.approx(1)
    assert error(case, lambda s, c, x: (x * s + c + jnp.nan, c + 1), wanted).largest == np.inf
    assert distance([np.nan], [1.0]) == np.inf and distance([3.0], [2.0]) == 0.5


TRACE = """
planes {
  name: "/host:CPU"
  lines { name: "Stream #1" events { metadata_id: 1 duration_ps: 9000000 } }
  event_metadata { key: 1 value { id: 1 name: "host" } }
}
planes {
  name: "/device:GPU:0"
  lines {
    name: "Stream #7(Compute)"
    events { metadata_id: 1 duration_ps: 3000000 }
    events { metadata_id: 1 duration_ps: 3000000 }
    events { metadata_id: 2 duration_ps: 1000000 }
    events { metadata_id: 3 duration_ps: 5000000 }
  }
  lines { name: "XLA Ops" events { metadata_id: 1 duration_ps: 3000000 } }
  event_metadata { key: 1 value { id: 1 name: "mono_bert" } }
  event_metadata { key: 2 value { id: 2 name: "loop_fusion" } }
  event_metadata { key: 3 value { id: 3 name: "MemcpyD2D" } }
}
"""


def test_launches_are_read_from_gpu_streams_only() -> None:
    data = ProfileData.from_serialized_xspace(ProfileData.text_proto_to_serialized_xspace(TRACE))
    seen = read(data, calls=2)
    assert (seen.launches, seen.copies, seen.busy_us) == (1.5, 0.5, 3.5)
    assert seen.names == {"mono_bert": 2, "loop_fusion": 1}
    host = ProfileData.from_serialized_xspace(
        ProfileData.text_proto_to_serialized_xspace(TRACE.split("planes {")[0] + 'planes {'
                                                    + TRACE.split("planes {")[1]))
    with pytest.raises(NoDeviceTrace):
        read(host, calls=1)


def test_tables_show_the_last_of_equal_rows_and_every_failure(tmp_path: Path) -> None:
    stamp = results.stamp("abc123", ["--chain=8"])
    assert results.default_folder(stamp).name == f"{stamp['date']}-cpu"
    base = {"case": "m", "title": "A model"}
    times = {"low_us": 1.0, "high_us": 9.0}
    rows: list[dict[str, Any]] = [stamp]
    for side, old, new in (("xla", 100.0, 200.0), ("jaxmono", 70.0, 100.0)):
        rows += [{**base, "kind": "program", "side": side, "hlo_kernels": 7, "kernels": 1},
                 {**base, "kind": "chained", "side": side, "median_us": old, **times},
                 {**base, "kind": "chained", "side": side, "median_us": new, **times},
                 {**base, "kind": "trace", "side": side, "failed": "no | trace"}]
    rows.append({"case": "other", "title": "other", "kind": "case", "failed": "OSError: gone"})
    for row in rows:
        results.append(tmp_path, row)
    assert results.read(tmp_path) == rows
    text = (tmp_path / "results.md").read_text()
    assert "commit abc123" in text and "`--chain=8`" in text
    assert "| A model | 200.0 (1.0 to 9.0) | 100.0 (1.0 to 9.0) | 0.50 |" in text
    assert "70.0" not in text
    assert text.count("no \\| trace") == 2 and "| other | case |  | OSError: gone |" in text

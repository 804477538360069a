"""Torch peers are the workloads' models at their sizes, and run behind the harness' protocol."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.peers import NoPeer, PeerFailed, TorchPeer, all_peers, takes_tiny, torch_peer
from benchmarks.workloads import all_workloads, further_tables

faithful = pytest.mark.faithful

SOME = ("dot_128_768_768", "gelu_128_3072_768", "silu_mul_128_3072_768", "attention_s128_12x64",
        "attention_s128_12x64_causal")
"""Of the further tables, whose peers are alike."""
NAMES = [name for name in all_peers() if name in all_workloads() or name in SOME]

DECODE = ("t5_small_decode", "opt_decode", "gpt2_decode", "gptj_decode", "llama_decode")
NO_GRAPH = ("wav2vec2_train", "gpt2_beam")
"""Peers that wait for the device or hand data to it in a call."""
MINE = ("torch_transformers", "torch_vision", "torch_speech")
"""Files whose builders also work on the device "meta"."""
EXTRA = {"wav2vec2": 768, "wav2vec2_train": 768}
"""Parameters that only the peer has: transformers' masking vector, which is not used."""


def needs_torch() -> Any:
    pytest.importorskip("transformers")
    return pytest.importorskip("torch")


def tensors(tree: Any) -> list[Any]:
    """The tensors of an output."""
    import torch

    if isinstance(tree, torch.Tensor):
        return [tree]
    return [t for part in tree for t in tensors(part)] if isinstance(tree, list | tuple) else []


def tiny(name: str, batch: int = 2) -> TorchPeer:
    torch = needs_torch()
    builder = torch_peer(name)
    if not takes_tiny(builder):
        pytest.skip(f"{name} has no tiny form")
    torch.manual_seed(0)
    return builder(batch, torch.float32, "cpu", tiny=True)


@contextmanager
def gradients_as_wanted(peer: TorchPeer) -> Iterator[None]:
    import torch

    with torch.set_grad_enabled(peer.training):
        yield


def test_without_torch_there_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name, *a: None if name == "torch" else find(name, *a))
    with pytest.raises(NoPeer, match=r"torch is not installed; pip install torch"):
        torch_peer("bert_base")


def test_workloads_without_a_peer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name, *a: object() if name == "torch" else find(name, *a))
    with pytest.raises(NoPeer, match="no torch peer is written for 'bert_bse'"):
        torch_peer("bert_bse")


def test_every_peer_is_one_of_a_workload() -> None:
    further = {w.name for table in further_tables().values() for w in table}
    assert not set(all_peers()) - set(all_workloads()) - further


@faithful
@pytest.mark.parametrize("name", NAMES)
def test_peers_run_and_listen_to_their_inputs(name: str) -> None:
    peer = tiny(name)
    first, second = peer.inputs(0), peer.inputs(1)
    assert [t.shape for t in first] == [t.shape for t in second]
    assert all((a == b).all() for a, b in zip(first, peer.inputs(0), strict=True))
    with gradients_as_wanted(peer):
        a, b = tensors(peer(*first)), tensors(peer(*second))
    assert a and all(t.isfinite().all() for t in a if t.is_floating_point())
    assert any(x.shape != y.shape or (x != y).any() for x, y in zip(a, b, strict=True))


@faithful
@pytest.mark.parametrize("name", [n for n in NAMES if n not in NO_GRAPH])
def test_calls_do_not_wait_for_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph can hold no such call; on a CPU the ops that would wait are seen."""
    needs_torch()
    import transformers
    from torch.utils._python_dispatch import TorchDispatchMode

    waits = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "lift_fresh")
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None,
                               ) -> Any:
            # lift_fresh: values from Python; copying none of them to a GPU does nothing.
            if str(func).split(".")[1] in waits and args[0].numel():
                seen.append(str(func))
            return func(*args, **(kwargs or {}))

    peer = tiny(name)
    inputs = peer.inputs(0)
    # transformers leaves out checks that wait while a graph is captured.
    monkeypatch.setattr(transformers.utils.import_utils, "is_cuda_stream_capturing", lambda: True)
    with gradients_as_wanted(peer), Watch():
        peer(*inputs)
    assert not seen


@faithful
@pytest.mark.parametrize("name", DECODE)
def test_decode_steps_equal_transformers_static_cache(name: str) -> None:
    """One step at position 31 of 32, and again: the position stays, and so does what is cached."""
    torch = needs_torch()
    from transformers import EncoderDecoderCache, StaticCache

    peer = tiny(name)
    step: Any = peer.module
    both = isinstance(step.cache, EncoderDecoderCache)
    mine = step.cache.self_attention_cache if both else step.cache
    theirs = StaticCache(step.model.config, max_cache_len=32)
    for layer, other in zip(mine.layers, theirs.layers, strict=True):
        other.lazy_initialization(layer.keys, layer.values)
        other.keys.copy_(layer.keys)
        other.values.copy_(layer.values)
        other.cumulative_length.fill_(31)
    token, *mask = peer.inputs(0)
    with torch.no_grad():
        if both:
            cache: Any = EncoderDecoderCache(theirs, step.cache.cross_attention_cache)
            want = step.model(decoder_input_ids=token, attention_mask=mask[0],
                              encoder_outputs=step.extra["encoder_outputs"],
                              past_key_values=cache)
        else:
            want = step.model(token, past_key_values=theirs, use_cache=True,
                              attention_mask=torch.ones(2, 32, dtype=torch.long),
                              position_ids=torch.full((2, 1), 31))
        got = [peer(*peer.inputs(0)), peer(*peer.inputs(1)), peer(*peer.inputs(0))]
    torch.testing.assert_close(got[0], want.logits)
    torch.testing.assert_close(got[2], want.logits)
    assert int(theirs.layers[0].cumulative_length) == 32
    for layer, other in zip(mine.layers, theirs.layers, strict=True):
        torch.testing.assert_close(layer.keys, other.keys)
        assert int(layer.cumulative_length) == 31


@faithful
@pytest.mark.parametrize("name", [n for n, builder in all_peers().items() if
                                  builder.__module__.endswith(MINE)])
def test_published_sizes_are_the_workloads(name: str) -> None:
    """As many parameters, and inputs of the same sizes; nothing is computed."""
    torch = needs_torch()
    import jax

    from benchmarks.workloads import find

    batch = 2
    peer = torch_peer(name)(batch, torch.bfloat16, "meta")
    state, carry, *inputs = find(name).program(batch=batch).abstract()
    ours = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))
    if peer.training:
        ours += sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(carry[0]))
    theirs = sum(p.numel() for p in peer.module.parameters())
    assert theirs - EXTRA.get(name, 0) == ours
    sizes = {leaf.size for leaf in jax.tree.leaves(inputs)}
    # jaxmono's step takes its position as an input; the peer's stands in its cache.
    assert {t.numel() for t in peer.inputs(0) if t.numel() > batch} <= sizes


def linear_peer(**more: Any) -> TorchPeer:
    import torch

    torch.manual_seed(0)
    return TorchPeer(torch.nn.Linear(3, 2), lambda seed: (torch.full((1, 3), float(seed)),),
                     **more)


@faithful
def test_compiled_peers_rotate_their_inputs() -> None:
    torch = needs_torch()
    from benchmarks.peers.torch_system import prepare

    seen: list[float] = []
    disabled = torch.compiler.disable(lambda x: seen.append(float(x[0, 0])))

    def call(module: Any, x: Any) -> Any:
        disabled(x)
        return module(x)

    running = prepare(linear_peer(call=call), "torch_compile", seeds=[5, 6, 7])
    assert running.facts.variant == "backend=eager" and running.facts.compile_s
    assert "graph break" in running.facts.notes
    assert running.facts.status == "ok" and running.label == "torch_compile"
    seen.clear()
    for _ in range(4):
        running.wait(running.start())
    running.wait(running.delay(1.0))
    assert sorted(set(seen)) == [5, 6, 7] and seen[0] == seen[3]
    running.close()
    with pytest.raises(ValueError, match="torch_compile is closed"):
        running.start()


@faithful
def test_peers_that_compile_themselves_run() -> None:
    needs_torch()
    from benchmarks.peers.torch_system import prepare

    peer = tiny("gpt2_beam", 1)
    running = prepare(peer, "torch_compile", seeds=[0, 1])
    running.wait(running.start())
    inputs = peer.inputs(2)
    assert (peer.compiled(peer.module, *inputs) == peer(*inputs)).all()
    running.close()


@faithful
def test_training_peers_keep_gradients_and_others_do_not() -> None:
    needs_torch()
    from benchmarks.peers.torch_system import prepare

    wanted: list[bool] = []

    def call(module: Any, x: Any) -> Any:
        y = module(x).sum()
        wanted.append(y.requires_grad)
        return y

    for training in (True, False):
        prepare(linear_peer(call=call, compiled=call, training=training), "torch_compile",
                seeds=[0])
        assert set(wanted) == {training}
        wanted.clear()


@faithful
def test_what_cannot_be_prepared_says_why() -> None:
    needs_torch()
    from benchmarks.peers.torch_system import prepare

    def broken(module: Any, x: Any) -> Any:
        raise RuntimeError("CUDA out of memory\nand much more")

    with pytest.raises(PeerFailed, match=r"^needs a CUDA device$"):
        prepare(linear_peer(), "torch_cudagraph", seeds=[0])
    with pytest.raises(PeerFailed, match=r"^RuntimeError: CUDA out of memory$"):
        prepare(linear_peer(call=broken, compiled=broken), "torch_compile", seeds=[0])
    with pytest.raises(ValueError, match="how='eager' is none of torch_compile, torch_cudagraph"):
        prepare(linear_peer(), "eager", seeds=[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seeds is empty"):
        prepare(linear_peer(), "torch_compile", seeds=[])


@faithful
def test_minilms_peer_computes_the_published_embeddings() -> None:
    """With the published weights in it, on the workload's sentences."""
    torch = needs_torch()
    import jax
    import numpy as np
    from safetensors.torch import load_file

    from benchmarks.workloads import find
    from benchmarks.workloads.minilm import _folder
    from examples.models import minilm

    try:
        folder = _folder() or minilm.package_directory()
    except minilm.NotInstalled as error:
        pytest.skip(str(error))
    peer = torch_peer("minilm_f32")(4, torch.float32, "cpu")
    missing, _ = peer.module.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not missing
    program = find("minilm_f32").program(batch=4)
    ids, mask = program.inputs(jax.random.key(0))
    with torch.no_grad():
        got = peer(*(torch.from_numpy(np.asarray(a, np.int64)) for a in (ids, mask)))
    want, _ = program.step(program.state(), (), ids, mask)
    np.testing.assert_allclose(got.numpy(), want, atol=1e-5)
    mine = peer.inputs(0)
    assert tuple(mine[0].shape) == ids.shape and int(mine[1].sum()) == int(mask.sum())


@faithful
def test_a_program_of_inductors_cache_tells_no_compile_time() -> None:
    torch = needs_torch()
    from benchmarks.peers import torch_system

    counters = torch._dynamo.utils.counters
    counters.clear()
    assert not torch_system._was_compiled("torch_compile")
    counters["inductor"]["fxgraph_cache_hit"] += 1
    assert torch_system._was_compiled("torch_compile")
    assert not torch_system._was_compiled("torch_cudagraph")
    counters.clear()

"""What happens to a region's Graph before groups are formed; the meaning stays."""

from __future__ import annotations

from collections.abc import Collection

from jaxmono.fusion.accumulated import returned_once
from jaxmono.fusion.batches_first import batches_first
from jaxmono.fusion.epilogue_reduces import of_contractions
from jaxmono.fusion.gated import gated
from jaxmono.fusion.long_products import long_products
from jaxmono.fusion.orient import orient
from jaxmono.fusion.padded_images import padded_images
from jaxmono.fusion.plan import Device
from jaxmono.fusion.round_rows import round_rows
from jaxmono.fusion.share_k import share_k
from jaxmono.fusion.split_reduce import split_reduces
from jaxmono.fusion.split_softmax import split_softmaxes
from jaxmono.fusion.unpadded import unpadded
from jaxmono.fusion.window_rows import order_rows
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.passes import dead_code, expand, unroll
from jaxmono.hlo.passes.unroll import told
from jaxmono.hlo.rewrite import replace_values

OPTIONAL = ("gated", "round_rows", "share_k", "window_rows")
"""Steps that `prepare` can go without."""


def prepare(graph: Graph, device: Device, without: Collection[str] = (),
            ) -> tuple[Graph, tuple[str, ...]]:
    """Takes loops apart, drops optimization barriers and dead ops, reads weights as they lie where
    padded copies are worth nothing, splits long softmaxes, reduces and contractions, orients
    contractions and puts the batches of their operands first, reads images as they lie in memory
    where they are copied into shared memory once, puts rows in the order of the windows that read
    them, rounds what convolutions of f32 read where it is written, and takes those contractions
    apart whose shares of k a norm can add up.

    A convolution that no pass has expanded yet is expanded here. ``without``: of `OPTIONAL`, what
    is left out; other names are not looked at.

    Returns:
      The graph, and what was not done to it and why, each one line for the user; of loops, too,
      how many trips a stage takes.
    """
    loops = told(graph)
    graph = returned_once(dead_code(expand(without_barriers(unroll(graph)))))
    # Those of a contraction's results may begin in its epilogue: known once there are groups.
    later = {} if "epilogue_reduces" in without else of_contractions(graph)
    graph = unpadded(graph, device, set(later.values()))
    graph, whole = split_reduces(split_softmaxes(graph, device, later), device, later)
    graph = long_products(graph, device)
    graph, apart = (graph, ()) if "gated" in without else gated(graph, device)
    graph = padded_images(batches_first(orient(graph)), device)
    graph = graph if "window_rows" in without else order_rows(graph)
    graph, kept = (graph, ()) if "round_rows" in without else round_rows(graph, device)
    graph, alone = (graph, ()) if "share_k" in without else share_k(graph, device)
    return graph, (*loops, *whole, *apart, *kept, *alone)


def without_barriers(graph: Graph) -> Graph:
    """Barriers keep XLA from merging what the user wants twice (remat); inside a kernel nothing
    is merged any more, so they are identities."""
    same: dict[Value, Value] = {}
    for o in graph.ops:
        if isinstance(o, ops.OptimizationBarrier):
            same.update(zip(o.results, o.args, strict=True))
    if not same:
        return graph
    kept = tuple(o for o in graph.ops if not isinstance(o, ops.OptimizationBarrier))
    return replace_values(Graph(graph.inputs, kept, graph.outputs, graph.name), same)

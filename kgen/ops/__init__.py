"""The shipped operators and the families that serve them, each imported when it is first needed.

A family is a folder with its schedules and, beside them, files of operators; nms is both in one file. Each file of operators
ships those in its tuple `OPERATORS`, and is listed here once, with their names. A process that calls one operator imports its
file and the families that might serve it: of all of them the classes alone take longer to make than a kernel takes to load.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Collection
from importlib import import_module

from kgen.dsl.any_order import unordered
from kgen.dsl.errors import ArgumentError
from kgen.dsl.expr import Expr
from kgen.dsl.family import Announced, announce
from kgen.dsl.gradient import backward_graphs
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.ops import PRODUCTS, REDUCTIONS, SCANS
from kgen.dsl.program import launches_of

__all__ = ["ALIASES", "UnknownOperatorError", "operator", "operators", "shipped"]

#: Files of operators by module, with the names of those that they ship.
FILES = {
    "gemm.products": "hgemm hgemm_f16acc hgemv sgemm sgemv dgemm tf32gemm igemm fp8gemm fp8gemm_blockwise fp8gemm_vectorwise "
    "grouped_hgemm linear linear_gelu gemm",
    "elementwise.pointwise": "add sub mul div maximum minimum weighted_sum sigmoid tanh relu elu gelu gelu_erf quick_gelu silu "
    "hardswish hardshrink bias_gelu gelu_mul silu_mul bias_residual add_relu batch_norm scale_cast",
    "elementwise.fused": "dropout dropout_backward bias_dropout_residual weighted_sum2 weighted_sum3 weighted_sum4 weighted_sum5 "
    "weighted_sum6 weighted_sum7 weighted_sum8",
    "elementwise.rope": "rope rope_interleaved rope_compact rope_interleaved_compact rope_frequencies "
    "rope_interleaved_frequencies rope_computed rope_interleaved_computed",
    "elementwise.layouts": "transpose contiguous",
    "rowwise.rows": "softmax log_softmax softmax_backward log_softmax_backward scale_mask_softmax scale_mask_softmax_dropout "
    "logsumexp cross_entropy layer_norm layer_norm_forward layer_norm_backward rms_norm rms_norm_forward rms_norm_backward "
    "add_rms_norm bias_residual_layer_norm layer_norm_residual_gelu layer_norm_residual_dropout_gelu row_sum row_mean row_max "
    "row_argmax",
    "reduction.reductions": "reduce_sum reduce_isum reduce_mean reduce_max reduce_min reduce_argmax norm dot idot",
    "reduction.columns": "column_sum column_mean column_max layer_norm_backward_weight rms_norm_backward_weight "
    "batch_norm_stats batch_norm_backward_sums",
    "gather.lookups": "embedding upsample_nearest upsample_nearest_backward split_heads merge_heads concat_sequence "
    "remove_padding restore_padding",
    "scatter.scatters": "histogram histogram_bytes index_add index_add_middle index_add_last embedding_backward",
    "scan.scans": "cumsum cumprod logcumsumexp",
    "nms": "nms_padded",
    "attention.heads": "attention_full attention_causal_lse attention_window_softcap attention_full_bias "
    "attention_causal_sinks_lse attention_causal_dropout attention_causal_lengths attention_causal_pages_of_16_lengths "
    "attention_ranges_lse attention_causal_fp8_lse attention_causal_f16acc attention_full_partial_lse merge_attention_f16 "
    "merge_attention_bf16",
    "attention.sigmoid": "sigmoid_attention_full_bias sigmoid_attention_causal",
    "linear_attention.heads": "linear_attention_undecayed linear_attention_decay linear_attention_decay_backwards",
    "programs": "group_norm batch_norm_train linear_logsumexp",
}
_FILE_OF = {name: module for module, names in FILES.items() for name in names.split()}


def _count(graph: Graph, ops: Collection[str]) -> int:
    return sum(node.op in ops for node in graph.nodes)


def _is_pointwise(graph: Graph) -> bool:
    """Whether nothing is multiplied or reduced, but in what random numbers begin with."""
    return not _count(graph, PRODUCTS | REDUCTIONS) or _count(graph, {"random"}) > 0


def _reductions(graph: Graph, of_rows: bool) -> list[Expr]:
    """The reductions along the last of several axes, or the others."""
    found = [node for node in graph.nodes if node.op in REDUCTIONS]
    return [
        n for n in found if of_rows == (n.attr == -1 and (n.args[0].shape.leading or len(n.args[0].shape.dims) > 1))
    ]


def _announced(module: str, priority: int, might_serve: Callable[[Graph], object]) -> Announced:
    return Announced(
        priority, lambda graph: bool(might_serve(graph)), functools.partial(import_module, f"kgen.ops.{module}")
    )


# Which graphs a family might serve: what `matches` asks for that needs nothing of the family's.
announce(
    _announced("attention_gradient", 3, lambda graph: _count(graph, PRODUCTS) > 1),
    _announced("attention", 2, lambda graph: _count(graph, PRODUCTS) > 1),
    _announced("linear_attention", 3, lambda graph: _count(graph, PRODUCTS) > 1),
    _announced("elementwise", 1, _is_pointwise),
    _announced("reduction.reduce", 1, lambda graph: _reductions(graph, of_rows=False)),
    _announced("gemm.products", 0, lambda graph: _count(graph, PRODUCTS) == 1),
    _announced("rowwise", 0, lambda graph: _count(graph, REDUCTIONS)),
    _announced("reduction.column_stats", 0, lambda graph: _reductions(graph, of_rows=False)),
    _announced("scan", 0, lambda graph: _count(graph, SCANS)),
    _announced("gather", 0, _is_pointwise),
    _announced("nms", 0, lambda graph: _count(graph, {"external"})),
    _announced("scatter", -1, lambda graph: _count(graph, {"scatter_add"})),
    _announced("programs", -1, lambda graph: True),
)

#: Other names that the field uses for an operator.
ALIASES = {"swish": "silu", "nms": "nms_padded"}


class UnknownOperatorError(ArgumentError, AttributeError):
    """No operator has that name."""


def operators() -> dict[str, Operator]:
    """The shipped operators by name, all of them imported."""
    modules = [import_module(f"kgen.ops.{module}") for module in FILES]
    return {operator.name: operator for module in modules for operator in module.OPERATORS}


def shipped(name: str) -> Operator | None:
    """The shipped operator of that very name, no alias; None where there is none."""
    if name not in _FILE_OF:
        return None
    found: dict[str, Operator] = {one.name: one for one in import_module(f"kgen.ops.{_FILE_OF[name]}").OPERATORS}
    return found[name]


def operator(name: str) -> Operator:
    """The shipped operator of that name or alias, or the launch `NAME_1`, `NAME_2` of one that takes several; what training runs
    of one, `NAME_train` (where that keeps more) and its gradient, `NAME_grad` or `NAME_train_grad`; `NAME_grad_unordered` is the
    gradient whose sums may be made in any order.

    Raises UnknownOperatorError, which names the nearest ones.
    """
    found = shipped(ALIASES.get(name, name)) or _derived(name) or _launch(name)
    if found is None:
        near = difflib.get_close_matches(name, [*_FILE_OF, *ALIASES], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(_FILE_OF)}"
        raise UnknownOperatorError(f"no operator {name!r}: {hint}")
    return found


def _launch(name: str) -> Operator | None:
    head = name.rpartition("_")[0]
    whole = shipped(head) or _derived(head)
    return next((launch for launch in launches_of(whole) if launch.name == name), None) if whole else None


@functools.cache
def _derived(name: str) -> Operator | None:
    """What a training step runs of an operator: the call with what it keeps, or the gradients of all inputs."""
    if name.endswith("_grad_unordered"):
        ordered = _derived(name.removesuffix("_unordered"))
        return ordered and Operator.of_graphs(list(map(unordered, ordered.graphs)), ordered.__doc__ or "", {})
    base = shipped(name.removesuffix("_grad").removesuffix("_train"))
    if base is None or not name.endswith(("_train", "_grad")):
        return None
    steps = [backward_graphs(graph) for graph in base.graphs]
    graphs = [made for step in steps for made in step if made is not None and made.name == name]
    return Operator.of_graphs(graphs, f"Derived of {base.name}.", {}) if graphs else None

"""Arrays of other libraries as operands: by DLPack (CuPy, JAX, numpy) or `__cuda_array_interface__` (numba). Nothing is copied.

The result is an array of the first operand's library, where it takes DLPack; a torch tensor where an operand is one. Only calls
without a plan look here: a warm call with torch tensors costs nothing more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import Operator

#: What an array that cannot be shown to torch raises: no such dtype, negative strides, no such device.
_REFUSALS = (BufferError, RuntimeError, TypeError, ValueError, AssertionError, AttributeError)


def is_foreign(x: Any) -> bool:
    """Whether it is an array of another library."""
    return not isinstance(x, Tensor) and (hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__"))


def call(
    run: Callable[..., Any],
    definition: Operator,
    given: Sequence[Any],
    outputs: Sequence[Any],
    named: Mapping[str, Any],
) -> Any:
    """A call of the operator `run` with operands among which are others' arrays: the result in their kind, or the outputs."""
    names = [*definition.tensors, *(spec.name for spec in definition.graphs[0].outputs)]
    tensors = [_shown(f"{definition.name}: {name}", x) for name, x in zip(names, (*given, *outputs))]
    for name, y in zip(names[len(given) :], outputs):
        _check_writable(f"{definition.name}: {name}", y)
    results = run(*tensors[: len(given)], out=tuple(tensors[len(given) :]) or None, **named)
    if outputs:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
    if any(isinstance(x, Tensor) for x in given):
        return results
    back = _back(given[0])
    return tuple(map(back, results)) if isinstance(results, tuple) else back(results)


def _shown(what: str, x: Any) -> Any:
    """The array's memory as a tensor, in order with its producer's stream; what is no array as it is."""
    if not is_foreign(x):
        return x
    if any(stride < 0 for stride in getattr(x, "strides", None) or ()):  # torch would end the process
        raise ArgumentError(f"{what} is a {type(x).__name__} with negative strides; expected a copy without")
    try:
        if hasattr(x, "__dlpack__"):
            return from_dlpack(x)
        stream = x.__cuda_array_interface__.get("stream")
        tensor = torch.as_tensor(x, device="cuda")
        if stream is not None:
            torch.cuda.current_stream(tensor.device).wait_stream(torch.cuda.ExternalStream(stream, tensor.device))
        return tensor
    except _REFUSALS as error:
        raise ArgumentError(f"{what} is a {type(x).__name__} that torch cannot see: {error}") from error


def _check_writable(what: str, y: Any) -> None:
    """Raises ArgumentError where an output's library does not say that its memory may be written: DLPack alone does not."""
    if not is_foreign(y):
        return
    interface = getattr(y, "__cuda_array_interface__", None) or getattr(y, "__array_interface__", None)
    if interface is None or interface["data"][1]:
        raise ArgumentError(f"{what} is a {type(y).__name__} that may not be written; expected an array that may")


def _back(like: Any) -> Callable[[Tensor], Any]:
    """What makes an array as `like` of a tensor: `from_dlpack` of its namespace or module; without one it stays a tensor."""
    library = type(like).__module__.partition(".")[0]
    if library == "numpy":
        return _to_numpy
    space = like.__array_namespace__() if hasattr(like, "__array_namespace__") else sys.modules.get(library)
    found: Callable[[Tensor], Any] = getattr(space, "from_dlpack", lambda y: y)
    return found


def _to_numpy(y: Tensor) -> Any:
    try:
        return y.numpy()
    except TypeError as error:
        raise ArgumentError(
            f"numpy has no {str(y.dtype).removeprefix('torch.')}, which the result has; expected torch tensors as operands"
        ) from error

"""kgen: describe an operator once, get a tuned CUDA kernel for it.

Public names load when they are first used, so that `import kgen` itself loads neither torch nor CUDA nor optuna.

A shipped operator and the function of the same name are one object: `kgen.gelu(x)` runs a kernel on a torch tensor, and
inside the definition of another operator, where x is a traced value, it stands for its mathematics. This holds for every
operator, the user's own included; see `kgen.runtime.operator`.
"""

from __future__ import annotations

import os.path
from importlib import import_module
from typing import Any

#: Where the public names live that are no shipped operators. Functions that an operator shares its name with are left out.
_MODULES = {
    "kgen.dsl.choice": "choice pruning rule",
    "kgen.dsl.errors": "KgenError DefinitionError ArgumentError ConfigError CompileError ToolchainError CacheError DeviceError "
    "EmulatorError DatabaseError",
    "kgen.dsl.expr": "where cast matmul grouped_matmul",
    "kgen.dsl.functions": "exp exp2 expm1 log log2 log1p sqrt rsqrt erf erfc sin cos floor ceil round reciprocal pow atan2 clamp "
    "sum mean amax amin argmax swap_halves swap_pairs",
    "kgen.dsl.external": "external",
    "kgen.dsl.indexing": "arange size take repeat scatter_add random",
    "kgen.dsl.operator": "Number Tensor",
    "kgen.dsl.family": "Family register_family",
    "kgen.dsl.problem": "Problem",
    "kgen.dsl.schedule": "Schedule SearchSpace",
    "kgen.dsl.size": "Dim ceil_div dims",
    "kgen.dsl.target": "Arch sm",
    "kgen.dsl.types": "f64 f32 tf32 f16 bf16 e4m3 e5m2 i64 i32 i8 bool_ dtype_var",
    "kgen.codegen.render": "render",
    "kgen.codegen.source": "Integer Launch Pointer Scalar Source TensorMap",
    "kgen.codegen.template_schedule": "TemplateSchedule",
    "kgen.ops.attention": "AttentionMma AttentionWgmma AttentionWide",
    "kgen.ops.attention_gradient": "AttentionGradientMma AttentionGradientOnePass AttentionGradientWgmma",
    "kgen.ops.elementwise": "Elementwise Transpose TransposeNarrow",
    "kgen.ops.gather.gather": "Gather",
    "kgen.ops.gather.gather_sum": "GatherSum",
    "kgen.ops.gemm": "Gemv MmaGemm SimtGemm WgmmaGemm",
    "kgen.ops.linear_attention": "LinearAttention LinearAttentionWgmma",
    "kgen.ops.nms": "Nms",
    "kgen.ops.reduction": "ChannelStats ColumnStats Reduce",
    "kgen.ops.rowwise": "Rowwise RowwiseCluster RowwiseSpan",
    "kgen.ops.scan": "Scan ScanSpan ScanSplit ScanThread",
    "kgen.ops.scatter": "ScatterAdd ScatterBins ScatterRows",
    "kgen.runtime.attention": "attention",
    "kgen.runtime.backend": "backend explain",
    "kgen.runtime.dispatch": "KgenWarning",
    "kgen.runtime.emulation": "emulate",
    "kgen.runtime.linear_attention": "linear_attention",
    "kgen.runtime.operator": "KernelOperator operator",
    "kgen.runtime.shipped": "tune",
    "kgen.runtime.sigmoid_attention": "sigmoid_attention",
    "kgen.runtime.varlen": "attention_varlen",
    "kgen.runtime.vision": "nms",
    "kgen.runtime.warm": "warm warming",
}
_NAMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_PACKAGES = (
    "bench", "cli", "codegen", "dsl", "emulator", "export", "gpu", "integrations", "numerics", "ops", "runtime", "templates",
    "tuner", "tuning_db",
)  # fmt: skip

# In a checkout that is not installed, kgen.templates and kgen.tuning_db stand beside this package, not in it.
_CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if all(os.path.isfile(os.path.join(_CHECKOUT, name, "__init__.py")) for name in ("templates", "tuning_db")):
    __path__.append(_CHECKOUT)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("kgen.dsl.version").VERSION
    if name == "__all__":  # what `from kgen import *` brings
        operators = import_module("kgen.ops")
        return sorted({*_NAMES, *operators.operators(), *operators.ALIASES})
    if name.startswith("_"):
        raise AttributeError(f"module 'kgen' has no attribute {name!r}")
    if name in _PACKAGES:
        return import_module(f"kgen.{name}")
    if name in _NAMES:
        globals()[name] = getattr(import_module(_NAMES[name]), name)
    else:
        globals()[name] = import_module("kgen.runtime.shipped").shipped(name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *import_module("kgen.ops").operators()})

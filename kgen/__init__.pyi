"""Types of the public names, which load on first use; tests/test_public_types.py writes this file."""

from kgen.codegen.render import render as render
from kgen.codegen.source import Integer as Integer
from kgen.codegen.source import Launch as Launch
from kgen.codegen.source import Pointer as Pointer
from kgen.codegen.source import Scalar as Scalar
from kgen.codegen.source import Source as Source
from kgen.codegen.source import TensorMap as TensorMap
from kgen.codegen.template_schedule import TemplateSchedule as TemplateSchedule
from kgen.dsl.choice import choice as choice
from kgen.dsl.choice import pruning as pruning
from kgen.dsl.choice import rule as rule
from kgen.dsl.errors import ArgumentError as ArgumentError
from kgen.dsl.errors import CacheError as CacheError
from kgen.dsl.errors import CompileError as CompileError
from kgen.dsl.errors import ConfigError as ConfigError
from kgen.dsl.errors import DatabaseError as DatabaseError
from kgen.dsl.errors import DefinitionError as DefinitionError
from kgen.dsl.errors import DeviceError as DeviceError
from kgen.dsl.errors import EmulatorError as EmulatorError
from kgen.dsl.errors import KgenError as KgenError
from kgen.dsl.errors import ToolchainError as ToolchainError
from kgen.dsl.expr import cast as cast
from kgen.dsl.expr import grouped_matmul as grouped_matmul
from kgen.dsl.expr import matmul as matmul
from kgen.dsl.expr import where as where
from kgen.dsl.external import external as external
from kgen.dsl.family import Family as Family
from kgen.dsl.family import register_family as register_family
from kgen.dsl.functions import amax as amax
from kgen.dsl.functions import amin as amin
from kgen.dsl.functions import argmax as argmax
from kgen.dsl.functions import atan2 as atan2
from kgen.dsl.functions import ceil as ceil
from kgen.dsl.functions import clamp as clamp
from kgen.dsl.functions import cos as cos
from kgen.dsl.functions import erf as erf
from kgen.dsl.functions import erfc as erfc
from kgen.dsl.functions import exp as exp
from kgen.dsl.functions import exp2 as exp2
from kgen.dsl.functions import expm1 as expm1
from kgen.dsl.functions import floor as floor
from kgen.dsl.functions import log as log
from kgen.dsl.functions import log1p as log1p
from kgen.dsl.functions import log2 as log2
from kgen.dsl.functions import mean as mean
from kgen.dsl.functions import pow as pow
from kgen.dsl.functions import reciprocal as reciprocal
from kgen.dsl.functions import round as round
from kgen.dsl.functions import rsqrt as rsqrt
from kgen.dsl.functions import sin as sin
from kgen.dsl.functions import sqrt as sqrt
from kgen.dsl.functions import sum as sum
from kgen.dsl.functions import swap_halves as swap_halves
from kgen.dsl.functions import swap_pairs as swap_pairs
from kgen.dsl.indexing import arange as arange
from kgen.dsl.indexing import random as random
from kgen.dsl.indexing import repeat as repeat
from kgen.dsl.indexing import scatter_add as scatter_add
from kgen.dsl.indexing import size as size
from kgen.dsl.indexing import take as take
from kgen.dsl.operator import Number as Number
from kgen.dsl.operator import Tensor as Tensor
from kgen.dsl.problem import Problem as Problem
from kgen.dsl.schedule import Schedule as Schedule
from kgen.dsl.schedule import SearchSpace as SearchSpace
from kgen.dsl.size import Dim as Dim
from kgen.dsl.size import ceil_div as ceil_div
from kgen.dsl.size import dims as dims
from kgen.dsl.target import Arch as Arch
from kgen.dsl.target import sm as sm
from kgen.dsl.types import bf16 as bf16
from kgen.dsl.types import bool_ as bool_
from kgen.dsl.types import dtype_var as dtype_var
from kgen.dsl.types import e4m3 as e4m3
from kgen.dsl.types import e5m2 as e5m2
from kgen.dsl.types import f16 as f16
from kgen.dsl.types import f32 as f32
from kgen.dsl.types import f64 as f64
from kgen.dsl.types import i8 as i8
from kgen.dsl.types import i32 as i32
from kgen.dsl.types import i64 as i64
from kgen.dsl.types import tf32 as tf32
from kgen.ops.attention import AttentionMma as AttentionMma
from kgen.ops.attention import AttentionWgmma as AttentionWgmma
from kgen.ops.attention import AttentionWide as AttentionWide
from kgen.ops.attention_gradient import AttentionGradientMma as AttentionGradientMma
from kgen.ops.attention_gradient import AttentionGradientOnePass as AttentionGradientOnePass
from kgen.ops.attention_gradient import AttentionGradientWgmma as AttentionGradientWgmma
from kgen.ops.elementwise import Elementwise as Elementwise
from kgen.ops.elementwise import Transpose as Transpose
from kgen.ops.elementwise import TransposeNarrow as TransposeNarrow
from kgen.ops.gather.gather import Gather as Gather
from kgen.ops.gather.gather_sum import GatherSum as GatherSum
from kgen.ops.gemm import Gemv as Gemv
from kgen.ops.gemm import MmaGemm as MmaGemm
from kgen.ops.gemm import SimtGemm as SimtGemm
from kgen.ops.gemm import WgmmaGemm as WgmmaGemm
from kgen.ops.linear_attention import LinearAttention as LinearAttention
from kgen.ops.linear_attention import LinearAttentionWgmma as LinearAttentionWgmma
from kgen.ops.nms import Nms as Nms
from kgen.ops.reduction import ChannelStats as ChannelStats
from kgen.ops.reduction import ColumnStats as ColumnStats
from kgen.ops.reduction import Reduce as Reduce
from kgen.ops.rowwise import Rowwise as Rowwise
from kgen.ops.rowwise import RowwiseCluster as RowwiseCluster
from kgen.ops.rowwise import RowwiseSpan as RowwiseSpan
from kgen.ops.scan import Scan as Scan
from kgen.ops.scan import ScanSpan as ScanSpan
from kgen.ops.scan import ScanSplit as ScanSplit
from kgen.ops.scan import ScanThread as ScanThread
from kgen.ops.scatter import ScatterAdd as ScatterAdd
from kgen.ops.scatter import ScatterBins as ScatterBins
from kgen.ops.scatter import ScatterRows as ScatterRows
from kgen.runtime.attention import attention as attention
from kgen.runtime.backend import backend as backend
from kgen.runtime.backend import explain as explain
from kgen.runtime.dispatch import KgenWarning as KgenWarning
from kgen.runtime.emulation import emulate as emulate
from kgen.runtime.linear_attention import linear_attention as linear_attention
from kgen.runtime.operator import KernelOperator as KernelOperator
from kgen.runtime.operator import operator as operator
from kgen.runtime.shipped import tune as tune
from kgen.runtime.sigmoid_attention import sigmoid_attention as sigmoid_attention
from kgen.runtime.varlen import attention_varlen as attention_varlen
from kgen.runtime.vision import nms as nms
from kgen.runtime.warm import warm as warm
from kgen.runtime.warm import warming as warming

__version__: str

add: KernelOperator
add_relu: KernelOperator
add_rms_norm: KernelOperator
attention_causal_dropout: KernelOperator
attention_causal_f16acc: KernelOperator
attention_causal_fp8_lse: KernelOperator
attention_causal_lengths: KernelOperator
attention_causal_lse: KernelOperator
attention_causal_pages_of_16_lengths: KernelOperator
attention_causal_sinks_lse: KernelOperator
attention_full: KernelOperator
attention_full_bias: KernelOperator
attention_full_partial_lse: KernelOperator
attention_ranges_lse: KernelOperator
attention_window_softcap: KernelOperator
batch_norm: KernelOperator
batch_norm_backward_sums: KernelOperator
batch_norm_stats: KernelOperator
batch_norm_train: KernelOperator
bias_dropout_residual: KernelOperator
bias_gelu: KernelOperator
bias_residual: KernelOperator
bias_residual_layer_norm: KernelOperator
column_max: KernelOperator
column_mean: KernelOperator
column_sum: KernelOperator
concat_sequence: KernelOperator
contiguous: KernelOperator
cross_entropy: KernelOperator
cumprod: KernelOperator
cumsum: KernelOperator
dgemm: KernelOperator
div: KernelOperator
dot: KernelOperator
dropout: KernelOperator
dropout_backward: KernelOperator
elu: KernelOperator
embedding: KernelOperator
embedding_backward: KernelOperator
fp8gemm: KernelOperator
fp8gemm_blockwise: KernelOperator
fp8gemm_vectorwise: KernelOperator
gelu: KernelOperator
gelu_erf: KernelOperator
gelu_mul: KernelOperator
gemm: KernelOperator
group_norm: KernelOperator
grouped_hgemm: KernelOperator
hardshrink: KernelOperator
hardswish: KernelOperator
hgemm: KernelOperator
hgemm_f16acc: KernelOperator
hgemv: KernelOperator
histogram: KernelOperator
histogram_bytes: KernelOperator
idot: KernelOperator
igemm: KernelOperator
index_add: KernelOperator
index_add_last: KernelOperator
index_add_middle: KernelOperator
layer_norm: KernelOperator
layer_norm_backward: KernelOperator
layer_norm_backward_weight: KernelOperator
layer_norm_forward: KernelOperator
layer_norm_residual_dropout_gelu: KernelOperator
layer_norm_residual_gelu: KernelOperator
linear: KernelOperator
linear_attention_decay: KernelOperator
linear_attention_decay_backwards: KernelOperator
linear_attention_undecayed: KernelOperator
linear_gelu: KernelOperator
linear_logsumexp: KernelOperator
log_softmax: KernelOperator
log_softmax_backward: KernelOperator
logcumsumexp: KernelOperator
logsumexp: KernelOperator
maximum: KernelOperator
merge_attention_bf16: KernelOperator
merge_attention_f16: KernelOperator
merge_heads: KernelOperator
minimum: KernelOperator
mul: KernelOperator
nms_padded: KernelOperator
norm: KernelOperator
quick_gelu: KernelOperator
reduce_argmax: KernelOperator
reduce_isum: KernelOperator
reduce_max: KernelOperator
reduce_mean: KernelOperator
reduce_min: KernelOperator
reduce_sum: KernelOperator
relu: KernelOperator
remove_padding: KernelOperator
restore_padding: KernelOperator
rms_norm: KernelOperator
rms_norm_backward: KernelOperator
rms_norm_backward_weight: KernelOperator
rms_norm_forward: KernelOperator
rope: KernelOperator
rope_compact: KernelOperator
rope_computed: KernelOperator
rope_frequencies: KernelOperator
rope_interleaved: KernelOperator
rope_interleaved_compact: KernelOperator
rope_interleaved_computed: KernelOperator
rope_interleaved_frequencies: KernelOperator
row_argmax: KernelOperator
row_max: KernelOperator
row_mean: KernelOperator
row_sum: KernelOperator
scale_cast: KernelOperator
scale_mask_softmax: KernelOperator
scale_mask_softmax_dropout: KernelOperator
sgemm: KernelOperator
sgemv: KernelOperator
sigmoid: KernelOperator
sigmoid_attention_causal: KernelOperator
sigmoid_attention_full_bias: KernelOperator
silu: KernelOperator
silu_mul: KernelOperator
softmax: KernelOperator
softmax_backward: KernelOperator
split_heads: KernelOperator
sub: KernelOperator
swish: KernelOperator
tanh: KernelOperator
tf32gemm: KernelOperator
transpose: KernelOperator
upsample_nearest: KernelOperator
upsample_nearest_backward: KernelOperator
weighted_sum: KernelOperator
weighted_sum2: KernelOperator
weighted_sum3: KernelOperator
weighted_sum4: KernelOperator
weighted_sum5: KernelOperator
weighted_sum6: KernelOperator
weighted_sum7: KernelOperator
weighted_sum8: KernelOperator

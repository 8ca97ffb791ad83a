"""The techniques of the GEMM schedules: what a kernel of each is called, and the values of the fields that make it one.

Sums in f16 are another operator (`hgemm_f16acc`): each technique has them there.
"""

from kgen.dsl.schedule import Technique, Techniques

_MMA: Technique = {"instruction": "mma"}
_MULTISTAGE: Technique = {**_MMA, "copy": "cp_async", "stages": (3, 4, 5)}
_SWIZZLED: Technique = {**_MULTISTAGE, "swizzle": "xor"}

MMA: Techniques = {
    "WMMA m16n16k16": {"instruction": "wmma"},
    "WMMA m32n8k16": {"instruction": "wmma_m32n8k16"},
    "WMMA m8n32k16": {"instruction": "wmma_m8n32k16"},
    "mma.sync, one stage, single elements": {**_MMA, "stages": 1, "pack": 1},
    "mma.sync, double buffer through registers": {**_MMA, "copy": "register", "stages": 2},
    "mma.sync, cp.async, padding": {**_MULTISTAGE, "swizzle": "pad"},
    "mma.sync, cp.async, swizzle, direct store": {**_SWIZZLED, "store": "direct"},
    "mma.sync, cp.async, swizzle, collective store by shuffles": {**_SWIZZLED, "store": "shuffle"},
    "mma.sync, cp.async, swizzle, collective store by stmatrix": {**_SWIZZLED, "store": "stmatrix"},
    "mma.sync, cp.async, swizzle, block swizzle": {**_SWIZZLED, "group": (4, 8, 16)},
    "mma.sync, cp.async, swizzle, split K": {**_SWIZZLED, "splits": (2, 4, 8, 16)},
}

SIMT: Techniques = {
    "naive": {"stages": 0, "TM": 1, "TN": 1},
    "sliced K": {"stages": 1, "TM": 1, "TN": 1, "pack": 1, "vector": 1},
    "thread tile 8x8": {"stages": 1, "TM": 8, "TN": 8},
    "thread tile 8x16": {"stages": (1, 2), "TM": 8, "TN": 16},
    "double buffer through registers": {"copy": "register", "stages": 2, "transpose": False},
    "double buffer through registers, transposed tiles": {"copy": "register", "stages": 2, "transpose": True},
    "double buffer, padding": {"stages": 2, "padding": 1},
    "cp.async": {"copy": "cp_async", "stages": (2, 3, 4)},
    "block swizzle": {"stages": (2, 3, 4), "group": (4, 8, 16)},
    "split K": {"stages": (2, 3, 4), "splits": (2, 4, 8, 16)},
}

_WHOLE: Technique = {"work": "tiles", "swap_ab": False}

WGMMA: Techniques = {
    "one consumer warpgroup": {**_WHOLE, "consumers": 1},
    "cooperative consumers": {**_WHOLE, "consumers": (2, 3), "pingpong": False},
    "ping-pong consumers": {**_WHOLE, "pingpong": True},
    "clusters with multicast": {**_WHOLE, "cluster": ("2x1", "1x2")},
    "direct store": {**_WHOLE, "store": "direct"},
    "store through shared memory": {**_WHOLE, "store": "shared"},
    "TMA store": {**_WHOLE, "store": "tma"},
    "transposed product": {"swap_ab": True},
    "stream-K": {"work": "stream_k"},
    "split-K": {"work": "split_k"},
    "split-K within a cluster": {"work": "cluster_k"},
}

GEMV: Techniques = {
    "single elements": {"pack": 1},
    "a warp a row": {"lanes": 32, "warps": 1, "splits": 1},
    "several rows a warp": {"lanes": (1, 2, 4, 8, 16), "warps": 1, "splits": 1},
    "several warps a row": {"warps": (2, 4, 8, 16), "splits": 1},
    "split-K": {"splits": (2, 4, 8, 16, 32)},
    "vectors in shared memory": {"staged": True},
}

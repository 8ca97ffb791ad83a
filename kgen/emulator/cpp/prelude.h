// What a generated kernel sees in place of CUDA's headers. Precompiled; included ahead of the kernel's body.
#pragma once

#include <cstddef>
// Without it the <cmath> of libstdc++ brings Bessel functions and the like, whose templates cost every kernel time.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmath>
#include <type_traits>
#include <utility>

// Each builds on those before it.
// clang-format off
#include "abi.h"
#include "vector_types.h"
#include "cuda_builtins.h"
#include "cuda_half.h"
#include "cuda_fp8.h"
#include "cuda_math.h"
#include "cuda_warp.h"
#include "ptx.h"
#include "ptx_hopper.h"
#include "wmma.h"
// clang-format on

namespace emu {

template <class... Parameters, size_t... I>
__attribute__((no_sanitize("thread"), noinline)) void call(void (*kernel)(Parameters...), void** arguments,
                                                           std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_cv_t<std::remove_reference_t<Parameters>>*>(arguments[I])...);
}

template <class... Parameters>
struct Signature {
  static constexpr int count = sizeof...(Parameters);
  static constexpr int sizes[] = {int(sizeof(Parameters))..., 0};
};
template <class... Parameters>
Signature<Parameters...> signature(void (*)(Parameters...));

}  // namespace emu

// Exports `kernel` to the runtime: how to call it with an array of pointers to arguments, and what it expects.
#define EMU_EXPORT(kernel)                                                                                        \
  extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) void kernel##_call(void** arguments) { \
    emu::call(&kernel, arguments, std::make_index_sequence<decltype(emu::signature(&kernel))::count>());          \
  }                                                                                                               \
  extern "C" __attribute__((visibility("default"))) int kernel##_parameter_size(int i) {                          \
    using Signature = decltype(emu::signature(&kernel));                                                          \
    return i < Signature::count ? Signature::sizes[i] : -1;                                                       \
  }

// The look-up of an operator's calls: what kinds of them were met, and the launches that these lead to.

#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include "launch.h"

namespace kgen {

using torch::autograd::variable_list;
using Key = c10::SmallVector<std::int64_t, 64>;

struct Step;

// A kind of call: what Python does with it, and its launch where it has one; or what is done where gradients are
// wanted.
struct Entry {
  Key key;
  Object plan, launch;
  std::shared_ptr<Step> step;
  Addresses checked;  // addresses that Python has found sound though outputs share memory
};

struct Calls {
  PyObject_HEAD;
  std::size_t inputs;
  Object trained;  // what makes calls of which gradients are wanted
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Entry>> entries;
};

constexpr std::uint64_t ALIGNMENT = 15;  // of an address: what a kernel's widest access depends on

// The class that a tensor has in Python, or would have.
template <class Slot>
PyTypeObject* class_of(const Slot* slot) {
  PyObject* object;
  if constexpr (requires { slot->load_pyobj(); })
    object = slot->load_pyobj();
  else
    object = slot->check_pyobj(false).value_or(nullptr);
  return object ? Py_TYPE(object) : reinterpret_cast<PyTypeObject*>(THPVariableClass);
}

// The tensors of a call, and all that a kernel may depend on: the first part of KernelOperator's keys.
struct Operands {
  c10::SmallVector<const at::Tensor*, 8> tensors;  // which others keep
  Addresses addresses;
  Key key;
  std::uint64_t require_gradients = 0;  // a bit of each
  bool have_memory = true;

  // False where it has no memory, or is one that torch has to see.
  bool add(const at::Tensor& x, PyTypeObject* type) {
    const c10::TensorImpl* impl = x.unsafeGetTensorImpl();
    if (!impl->has_storage() || impl->has_symbolic_sizes_strides() || impl->key_set().has(c10::DispatchKey::Python))
      return false;
    const auto address = reinterpret_cast<std::uint64_t>(impl->data());
    if (impl->requires_grad()) require_gradients |= 1ull << (tensors.size() % 64);
    tensors.push_back(&x);
    addresses.push_back(address);
    const auto sizes = impl->sizes(), strides = impl->strides();
    const bool contiguous = impl->is_contiguous();
    const c10::Device device = impl->device();
    have_memory &= !device.is_meta();
    key.push_back(reinterpret_cast<std::int64_t>(type));
    key.push_back(static_cast<std::int64_t>(impl->key_set().raw_repr()));
    key.push_back(static_cast<std::int64_t>(address & ALIGNMENT) | contiguous << 8 |
                  static_cast<std::int64_t>(c10::typeMetaToScalarType(impl->dtype())) << 16 |
                  static_cast<std::int64_t>(device.type()) << 24 |
                  static_cast<std::int64_t>(device.has_index() ? device.index() + 1 : 0) << 32 |
                  static_cast<std::int64_t>(sizes.size()) << 48);
    key.append(sizes.begin(), sizes.end());
    if (!contiguous) key.append(strides.begin(), strides.end());
    return true;
  }
  bool add(PyObject* object) { return THPVariable_Check(object) && add(THPVariable_Unpack(object), Py_TYPE(object)); }

  // The operands of a call with `given` inputs and `out`: one, several or none. False where Python has to look at them.
  bool take(PyObject* given, PyObject* out) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i)
      if (!add(PyTuple_GET_ITEM(given, i))) return false;
    if (out == Py_None) return true;
    if (!PyTuple_Check(out) && !PyList_Check(out)) return add(out);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(out); ++i)
      if (!add(PySequence_Fast_GET_ITEM(out, i))) return false;
    return true;
  }
  bool take(const variable_list& given) {
    for (const at::Tensor& x : given)
      if (!x.defined() || !add(x, class_of(x.unsafeGetTensorImpl()->pyobj_slot()))) return false;
    return true;
  }

  std::uint64_t hash() const {  // FNV-1a over words
    std::uint64_t found = 14695981039346656037u;
    for (const std::int64_t word : key) found = (found ^ static_cast<std::uint64_t>(word)) * 1099511628211u;
    return found;
  }
};

inline Entry* find(Calls* calls, const Operands& operands) {
  const auto [first, last] = calls->entries.equal_range(operands.hash());
  for (auto at = first; at != last; ++at)
    if (at->second->key == operands.key) return at->second.get();
  return nullptr;
}

// Whether nothing of torch's has to see a call: no mode, no transform of functorch, no autocast.
inline bool is_ordinary() {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  return (local.included_ - c10::default_included_set).empty() && (c10::default_excluded_set - local.excluded_).empty();
}

// Whether outputs from `inputs` on share no memory with other operands.
inline bool are_apart(const Launch* launch, const Addresses& addresses, std::size_t inputs) {
  for (std::size_t i = inputs; i < addresses.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (addresses[j] < addresses[i] + launch->extents[i] && addresses[i] < addresses[j] + launch->extents[j])
        return false;
  return true;
}

// A call by the launch of its kind, with its outputs among the operands, or new ones in `made`. False, perhaps with an
// exception, where Python has to make it.
inline bool by_launch(const Entry* entry, const Operands& operands, std::size_t inputs, PyObject* named,
                      variable_list& made) {
  if (entry->launch.object == Py_None) return false;
  const Object kept = Object::borrowed(entry->launch.object);  // the call may drop the entry
  Launch* const launch = launch_of(kept.object);
  const Using use(launch);
  if (!use.held || !set_numbers(launch, named)) return false;
  Addresses addresses = operands.addresses;
  if (addresses.size() > inputs) {
    if (!are_apart(launch, addresses, inputs) && entry->checked != addresses) return false;
    for (std::size_t i = inputs; i < addresses.size(); ++i)
      operands.tensors[i]->unsafeGetTensorImpl()->bump_version();  // autograd may have saved it
  } else {
    for (const Output& output : launch->outputs) {
      const auto options = at::TensorOptions(launch->device).dtype(output.dtype);
      made.push_back(at::empty(output.shape, options));
      addresses.push_back(reinterpret_cast<std::uint64_t>(made.back().data_ptr()));
    }
  }
  return submit(launch, addresses) == 0;  // else Python's launch says why, or has another GPU's context
}

}  // namespace kgen

// Warm calls of operators: from torch's tensors to the driver's launch without Python between.
//
// What is here does as KernelOperator.__call__ and GpuPlan do (kgen/runtime), which say what a call is; whatever is not
// an ordinary call of a kind that was met before is theirs. `Calls` is the look-up of one operator, `Launch`
// (launch.h) what it leads to. Calls hold the GIL but for the launch itself, where a full queue makes it wait.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include "gradients.h"
#include "launch.h"

namespace kgen {
namespace {

using Key = c10::SmallVector<std::int64_t, 64>;

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

constexpr std::size_t LIMIT = 4096;      // entries; beyond it all are dropped
constexpr std::uint64_t ALIGNMENT = 15;  // of an address: what a kernel's widest access depends on

// The tensors of a call, and all that a kernel may depend on: the first part of KernelOperator's keys.
struct Operands {
  c10::SmallVector<PyObject*, 8> objects;
  Addresses addresses;
  Key key;
  std::uint64_t require_gradients = 0;  // a bit of each
  bool have_memory = true;

  // False where it is no tensor with memory.
  bool add(PyObject* object) {
    if (!THPVariable_Check(object)) return false;
    const at::Tensor& x = THPVariable_Unpack(object);
    const c10::TensorImpl* impl = x.unsafeGetTensorImpl();
    if (!impl->has_storage() || impl->has_symbolic_sizes_strides() || impl->key_set().has(c10::DispatchKey::Python))
      return false;
    const auto address = reinterpret_cast<std::uint64_t>(impl->data());
    if (impl->requires_grad()) require_gradients |= 1ull << (objects.size() % 64);
    objects.push_back(object);
    addresses.push_back(address);
    const auto sizes = impl->sizes(), strides = impl->strides();
    const bool contiguous = impl->is_contiguous();
    const c10::Device device = impl->device();
    have_memory &= !device.is_meta();
    key.push_back(reinterpret_cast<std::int64_t>(Py_TYPE(object)));
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

  // Makes it the kind of calls of which gradients are wanted; false where these are too many to tell.
  bool of_step() {
    key.push_back(static_cast<std::int64_t>(require_gradients));
    return objects.size() <= 64;
  }

  std::uint64_t hash() const {  // FNV-1a over words
    std::uint64_t found = 14695981039346656037u;
    for (const std::int64_t word : key) found = (found ^ static_cast<std::uint64_t>(word)) * 1099511628211u;
    return found;
  }
};

Entry* find(Calls* calls, const Operands& operands) {
  const auto [first, last] = calls->entries.equal_range(operands.hash());
  for (auto at = first; at != last; ++at)
    if (at->second->key == operands.key) return at->second.get();
  return nullptr;
}

// Whether nothing of torch's has to see a call: no mode, no transform of functorch, no autocast.
bool is_ordinary() {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  return (local.included_ - c10::default_included_set).empty() && (c10::default_excluded_set - local.excluded_).empty();
}

// Whether outputs from `inputs` on share no memory with other operands.
bool are_apart(const Launch* launch, const Addresses& addresses, std::size_t inputs) {
  for (std::size_t i = inputs; i < addresses.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (addresses[j] < addresses[i] + launch->extents[i] && addresses[i] < addresses[j] + launch->extents[j])
        return false;
  return true;
}

// What Python's plan makes of a call.
PyObject* by_plan(Entry* entry, const Operands& operands, PyObject* named) {
  const Object plan = Object::borrowed(entry->plan.object);  // the call may drop the entry
  const auto count = static_cast<Py_ssize_t>(operands.objects.size());
  const Object tensors(PyTuple_New(count)), addresses(PyList_New(count));
  if (!tensors || !addresses) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(tensors.object, i, Py_NewRef(operands.objects[i]));
    PyObject* const address = PyLong_FromUnsignedLongLong(operands.addresses[i]);
    if (!address) return nullptr;
    PyList_SET_ITEM(addresses.object, i, address);
  }
  return PyObject_CallFunctionObjArgs(plan.object, tensors.object, addresses.object, named, nullptr);
}

// A call by its launch. Null without an exception where Python has to make it.
PyObject* by_launch(Entry* entry, const Operands& operands, std::size_t inputs, PyObject* named) {
  const Object kept = Object::borrowed(entry->launch.object);
  Launch* const launch = launch_of(kept.object);
  const std::size_t count = launch->outputs.size(), given = operands.objects.size() - inputs;
  const Using use(launch);
  if (!use.held) return nullptr;
  if (!set_numbers(launch, named)) return nullptr;
  Addresses addresses = operands.addresses;
  c10::SmallVector<Object, 4> results;
  if (given) {
    if (!are_apart(launch, addresses, inputs) && entry->checked != addresses) return nullptr;
    for (std::size_t i = 0; i < count; ++i) {
      PyObject* const y = operands.objects[inputs + i];
      THPVariable_Unpack(y).unsafeGetTensorImpl()->bump_version();  // autograd may have saved it
      results.push_back(Object::borrowed(y));
    }
  } else {
    for (const Output& output : launch->outputs) {
      const auto options = at::TensorOptions(launch->device).dtype(output.dtype);
      at::Tensor y = at::empty(output.shape, options);
      addresses.push_back(reinterpret_cast<std::uint64_t>(y.data_ptr()));
      results.emplace_back(THPVariable_Wrap(std::move(y)));
      if (!results.back()) return nullptr;
    }
  }
  if (submit(launch, addresses)) return nullptr;  // Python's launch says why, or has another GPU's context
  if (count == 1) return std::exchange(results[0].object, nullptr);
  PyObject* const all = PyTuple_New(static_cast<Py_ssize_t>(count));
  for (std::size_t i = 0; all && i < count; ++i)
    PyTuple_SET_ITEM(all, static_cast<Py_ssize_t>(i), std::exchange(results[i].object, nullptr));
  return all;
}

// Calls: the type.

PyObject* calls_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  Py_ssize_t inputs;
  PyObject* trained;
  if (!PyArg_ParseTuple(arguments, "nO", &inputs, &trained)) return nullptr;
  const auto self = reinterpret_cast<Calls*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  new (&self->entries) decltype(self->entries)();
  new (&self->trained) Object(Object::borrowed(trained));
  self->inputs = static_cast<std::size_t>(inputs);
  return reinterpret_cast<PyObject*>(self);
}

int calls_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<Calls*>(object)->trained.object);
  for (const auto& [hash, entry] : reinterpret_cast<Calls*>(object)->entries) {
    Py_VISIT(entry->plan.object);
    Py_VISIT(entry->launch.object);
    if (entry->step) Py_VISIT(entry->step->calls.object);
    if (entry->step) Py_VISIT(entry->step->step.object);
  }
  return 0;
}

void drop_entries(PyObject* object) {
  decltype(Calls::entries) entries;  // what is dropped may call back
  entries.swap(reinterpret_cast<Calls*>(object)->entries);
}

int calls_clear(PyObject* object) {
  drop_entries(object);
  const Object trained = std::move(reinterpret_cast<Calls*>(object)->trained);
  return 0;
}

void calls_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  calls_clear(object);
  using Entries = decltype(Calls::entries);
  reinterpret_cast<Calls*>(object)->entries.~Entries();
  std::destroy_at(&reinterpret_cast<Calls*>(object)->trained);
  PyTypeObject* const type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* make_call(Calls* self, PyObject* given, PyObject* out, PyObject* named);

// A call of which gradients are wanted. NotImplemented where Python has to make it.
PyObject* by_step(const Step& step, PyObject* given, PyObject* named) {
  Object results;
  {
    const at::AutoGradMode off(false);
    results = Object(make_call(reinterpret_cast<Calls*>(step.calls.object), given, Py_None, named));
  }
  if (!results || results.object == Py_NotImplemented) return std::exchange(results.object, nullptr);
  connect(step, given, named, results);
  if (!PyTuple_Check(results.object)) return std::exchange(results.object, nullptr);
  if (step.count == 1) return Py_NewRef(PyTuple_GET_ITEM(results.object, 0));
  return PyTuple_GetSlice(results.object, 0, static_cast<Py_ssize_t>(step.count));
}

// The results, or NotImplemented where Python has to make the call.
PyObject* make_call(Calls* self, PyObject* given, PyObject* out, PyObject* named) {
  if (static_cast<std::size_t>(PyTuple_GET_SIZE(given)) != self->inputs || !is_ordinary())
    return Py_NewRef(Py_NotImplemented);
  Operands operands;
  if (!operands.take(given, out)) return Py_NewRef(Py_NotImplemented);
  if (operands.require_gradients && at::GradMode::is_enabled()) {
    if (out != Py_None || !operands.have_memory || !self->trained) return Py_NewRef(Py_NotImplemented);
    operands.of_step();
    if (Entry* const entry = find(self, operands)) {
      const std::shared_ptr<Step> step = entry->step;  // the call may drop the entry
      PyObject* const found = by_step(*step, given, named);
      if (found != Py_NotImplemented) return found;
      Py_DECREF(found);
    }
    return PyObject_Call(self->trained.object, given, named);
  }
  Entry* const entry = find(self, operands);
  if (!entry) return Py_NewRef(Py_NotImplemented);
  if (entry->launch.object != Py_None) {
    PyObject* const found = by_launch(entry, operands, self->inputs, named);
    if (found || PyErr_Occurred()) return found;
    if (Entry* const again = find(self, operands)) {
      PyObject* const checked = by_plan(again, operands, named);
      if (Entry* const sound = checked ? find(self, operands) : nullptr) sound->checked = operands.addresses;
      return checked;
    }
    return Py_NewRef(Py_NotImplemented);
  }
  return by_plan(entry, operands, named);
}

// calls(given, out, named).
PyObject* calls_call(PyObject* object, PyObject* arguments, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *given, *out, *named;
  if (!PyArg_UnpackTuple(arguments, "Calls", 3, 3, &given, &out, &named)) return nullptr;
  return make_call(reinterpret_cast<Calls*>(object), given, out, named);
  END_HANDLE_TH_ERRORS
}

void enter(PyObject* object, const Operands& operands, Object plan, Object launch, std::shared_ptr<Step> step) {
  const auto self = reinterpret_cast<Calls*>(object);
  if (self->entries.size() >= LIMIT) drop_entries(object);
  if (find(self, operands)) return;
  auto entry = std::make_unique<Entry>();
  entry->key = operands.key;
  entry->plan = std::move(plan);
  entry->launch = std::move(launch);
  entry->step = std::move(step);
  self->entries.emplace(operands.hash(), std::move(entry));
}

// keep(given, out, plan, launch): has calls with operands of this kind run the plan, or the launch where it is not
// None.
PyObject* calls_keep(PyObject* object, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *given, *out, *plan, *launch;
  if (!PyArg_UnpackTuple(arguments, "keep", 4, 4, &given, &out, &plan, &launch)) return nullptr;
  const auto self = reinterpret_cast<Calls*>(object);
  Operands operands;
  if (static_cast<std::size_t>(PyTuple_GET_SIZE(given)) == self->inputs && operands.take(given, out))
    enter(object, operands, Object::borrowed(plan), Object::borrowed(launch), nullptr);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// keep_step(given, calls, step, inputs, outputs, count): has calls with tensors of this kind, of which those that
// require gradients do, made by `calls`; `step` is what then makes the gradients, of these inputs and outputs of it.
PyObject* calls_keep_step(PyObject* object, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *given, *calls, *made, *inputs, *outputs;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(arguments, "O!O!OO!O!n", &PyTuple_Type, &given, Py_TYPE(object), &calls, &made, &PyTuple_Type,
                        &inputs, &PyTuple_Type, &outputs, &count))
    return nullptr;
  Operands operands;
  if (operands.take(given, Py_None) && operands.of_step()) {
    auto step = std::make_shared<Step>();
    step->calls = Object::borrowed(calls);
    step->step = Object::borrowed(made);
    step->inputs = numbers_of<std::size_t>(inputs);
    step->outputs = numbers_of<std::size_t>(outputs);
    step->count = static_cast<std::size_t>(count);
    enter(object, operands, Object::borrowed(Py_None), Object::borrowed(Py_None), std::move(step));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* calls_forget(PyObject* object, PyObject*) {
  drop_entries(object);
  Py_RETURN_NONE;
}

PyMethodDef CALLS_METHODS[] = {
    {"keep", calls_keep, METH_VARARGS, nullptr},
    {"keep_step", calls_keep_step, METH_VARARGS, nullptr},
    {"forget", calls_forget, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot CALLS_SLOTS[] = {
    {Py_tp_new, reinterpret_cast<void*>(calls_new)},
    {Py_tp_traverse, reinterpret_cast<void*>(calls_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(calls_clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(calls_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(calls_call)},
    {Py_tp_methods, CALLS_METHODS},
    {0, nullptr},
};
PyType_Spec CALLS_SPEC = {"kgen_warm_calls.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                          CALLS_SLOTS};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "kgen_warm_calls", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace kgen

PyMODINIT_FUNC PyInit_kgen_warm_calls() {
  PyObject* const module = PyModule_Create(&kgen::MODULE);
  if (!module) return nullptr;
  const kgen::Object calls(PyType_FromSpec(&kgen::CALLS_SPEC)), launch(PyType_FromSpec(&kgen::LAUNCH_SPEC));
  if (!calls || !launch || PyModule_AddObjectRef(module, "Calls", calls.object) < 0 ||
      PyModule_AddObjectRef(module, "Launch", launch.object) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}

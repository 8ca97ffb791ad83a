// Warm calls of operators: from torch's tensors to the driver's launch without Python between.
//
// What is here does as KernelOperator.__call__ and GpuPlan do (kgen/runtime), which say what a call is; whatever is not
// an ordinary call of a kind that was met before is theirs. `Launch` is a prepared launch of one kind of call, `Calls`
// the look-up of one operator. Calls hold the GIL but for the launch itself, where a full queue makes it wait.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

// A reference to a Python object.
struct Object {
  PyObject* object = nullptr;
  Object() = default;
  explicit Object(PyObject* owned) : object(owned) {}
  Object(Object&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(object, other.object);
    return *this;
  }
  ~Object() { Py_XDECREF(object); }
  static Object borrowed(PyObject* object) { return Object(Py_XNewRef(object)); }
  explicit operator bool() const { return object != nullptr; }
};

// As in CUDA's driver API: CUlaunchConfig, cuLaunchKernelEx and cuTensorMapReplaceAddress.
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  std::uint64_t stream;
  void* attributes;
  unsigned attribute_count;
};
using LaunchFunction = int (*)(const LaunchConfig*, void* function, void** parameters, void** extra);
using ReplaceFunction = int (*)(void* map, std::uint64_t address);

using Addresses = c10::SmallVector<std::uint64_t, 8>;
using Key = c10::SmallVector<std::int64_t, 64>;

struct Output {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype;
};

struct ShownMap {
  std::size_t slot;
  void* map;
  std::uint64_t address;
};

struct Number {
  Object name;
  std::size_t slot;
  char kind;  // 'f', 'd', 'i' or 'q', as struct's
  bool required;
  std::uint64_t value;  // where it is not given
};

struct Launch {
  PyObject_HEAD;
  bool busy;  // a call is using the slots: the GIL may change hands in it
  std::vector<Output> outputs;
  at::Device device{at::kCPU};
  std::vector<std::size_t> order;  // of the addresses of operands and workspaces, a slot each
  std::vector<std::uint64_t> extents;
  std::vector<ShownMap> maps;
  std::vector<Number> numbers;
  LaunchConfig* config;
  void* function;
  void** parameters;
  std::uint64_t* slots;
  LaunchFunction launch;
  ReplaceFunction replace;
  Object stream_of, index, workspaces, kept;
};

// A kind of call: what Python does with it, and its launch where it is one kernel's.
struct Entry {
  Key key;
  Object plan, launch;
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
  bool require_gradients = false, have_memory = true;

  // False where it is no tensor with memory.
  bool add(PyObject* object) {
    if (!THPVariable_Check(object)) return false;
    const at::Tensor& x = THPVariable_Unpack(object);
    const c10::TensorImpl* impl = x.unsafeGetTensorImpl();
    if (!impl->has_storage() || impl->has_symbolic_sizes_strides() || impl->key_set().has(c10::DispatchKey::Python))
      return false;
    const auto address = reinterpret_cast<std::uint64_t>(impl->data());
    objects.push_back(object);
    addresses.push_back(address);
    require_gradients |= impl->requires_grad();
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

// The bits of a number in its parameter; false where it is another's, or beyond it: Python refuses it by name.
bool encode(PyObject* value, char kind, std::uint64_t& bits) {
  bits = 0;
  if (kind == 'f' || kind == 'd') {
    if (!PyFloat_CheckExact(value)) return false;
    const double wide = PyFloat_AS_DOUBLE(value);
    const float narrow = static_cast<float>(wide);
    if (kind == 'f' && std::isfinite(wide) && !std::isfinite(narrow)) return false;
    if (kind == 'f')
      std::memcpy(&bits, &narrow, sizeof narrow);
    else
      std::memcpy(&bits, &wide, sizeof wide);
    return true;
  }
  if (!PyLong_CheckExact(value)) return false;
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  using Int = std::numeric_limits<std::int32_t>;
  if (overflow || (kind == 'i' && (number < Int::min() || number > Int::max()))) return false;
  std::memcpy(&bits, &number, kind == 'i' ? 4 : 8);
  return true;
}

// Writes the numbers of a call into their slots; false where Python has to look at them.
bool set_numbers(Launch* launch, PyObject* named) {
  const Py_ssize_t given = PyDict_GET_SIZE(named);
  Py_ssize_t found = 0;
  for (const Number& number : launch->numbers) {
    PyObject* const value = given ? PyDict_GetItem(named, number.name.object) : nullptr;
    std::uint64_t bits = number.value;
    if (value ? !encode(value, number.kind, bits) : number.required) return false;
    found += value != nullptr;
    launch->slots[number.slot] = bits;
  }
  return found == given;
}

// Adds the addresses of workspaces on the stream, which Python keeps; `held` is to live until the launch is made.
bool add_workspaces(Launch* launch, PyObject* stream, Addresses& addresses, Object& held) {
  held = Object(PyObject_CallOneArg(launch->workspaces.object, stream));
  if (!held) return false;
  PyObject* const places = PyTuple_GetItem(held.object, 0);
  for (Py_ssize_t i = 0; places && i < PyList_Size(places); ++i)
    addresses.push_back(PyLong_AsUnsignedLongLong(PyList_GET_ITEM(places, i)));
  return !PyErr_Occurred();
}

// Launches with these addresses; the driver's result, or -1 with an exception.
int submit(Launch* launch, Addresses& addresses) {
  const Object stream(PyObject_CallOneArg(launch->stream_of.object, launch->index.object));
  if (!stream) return -1;
  launch->config->stream = PyLong_AsUnsignedLongLong(stream.object);
  Object held;
  if (launch->workspaces.object != Py_None && !add_workspaces(launch, stream.object, addresses, held)) return -1;
  for (std::size_t slot = 0; slot < launch->order.size(); ++slot) launch->slots[slot] = addresses[launch->order[slot]];
  for (ShownMap& shown : launch->maps) {
    const std::uint64_t address = launch->slots[shown.slot];
    if (address == shown.address) continue;
    if (const int refused = launch->replace(shown.map, address)) return refused;
    shown.address = address;
  }
  int result;
  Py_BEGIN_ALLOW_THREADS;
  result = launch->launch(launch->config, launch->function, launch->parameters, nullptr);
  Py_END_ALLOW_THREADS;
  return result;
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

struct Busy {
  bool& flag;
  explicit Busy(Launch* launch) : flag(launch->busy) { flag = true; }
  ~Busy() { flag = false; }
};

// A call by its launch. Null without an exception where Python has to make it.
PyObject* by_launch(Entry* entry, const Operands& operands, std::size_t inputs, PyObject* named) {
  const Object kept = Object::borrowed(entry->launch.object);
  const auto launch = reinterpret_cast<Launch*>(kept.object);
  const std::size_t count = launch->outputs.size(), given = operands.objects.size() - inputs;
  if (launch->busy) return nullptr;
  const Busy busy(launch);
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

// calls(given, out, named): the results, or NotImplemented where Python has to make the call.
PyObject* calls_call(PyObject* object, PyObject* arguments, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *given, *out, *named;
  if (!PyArg_UnpackTuple(arguments, "Calls", 3, 3, &given, &out, &named)) return nullptr;
  const auto self = reinterpret_cast<Calls*>(object);
  if (static_cast<std::size_t>(PyTuple_GET_SIZE(given)) != self->inputs || !is_ordinary())
    return Py_NewRef(Py_NotImplemented);
  Operands operands;
  if (!operands.take(given, out)) return Py_NewRef(Py_NotImplemented);
  if (operands.require_gradients && at::GradMode::is_enabled()) {
    if (out != Py_None || !operands.have_memory || !self->trained) return Py_NewRef(Py_NotImplemented);
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
  END_HANDLE_TH_ERRORS
}

// keep(given, out, plan, launch): has calls with operands of this kind run the plan, or the launch where it is not
// None.
PyObject* calls_keep(PyObject* object, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *given, *out, *plan, *launch;
  if (!PyArg_UnpackTuple(arguments, "keep", 4, 4, &given, &out, &plan, &launch)) return nullptr;
  const auto self = reinterpret_cast<Calls*>(object);
  Operands operands;
  if (static_cast<std::size_t>(PyTuple_GET_SIZE(given)) == self->inputs && operands.take(given, out)) {
    if (self->entries.size() >= LIMIT) drop_entries(object);
    if (!find(self, operands)) {
      auto entry = std::make_unique<Entry>();
      entry->key = operands.key;
      entry->plan = Object::borrowed(plan);
      entry->launch = Object::borrowed(launch);
      self->entries.emplace(operands.hash(), std::move(entry));
    }
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

// Launch: the type.

std::uint64_t number_at(PyObject* sequence, Py_ssize_t index) {
  return PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(sequence, index));
}

// Launch(device, outputs, order, extents, maps, numbers, (config, function, parameters, slots), (launch, replace),
//        stream_of, index, workspaces, kept); tuples everywhere, memory and functions by their addresses:
// outputs ((shape, an empty tensor of its dtype), ...); maps ((slot, map, address), ...);
// numbers ((name, slot, kind, required, bits), ...); workspaces a function of the stream, or None; kept: what lives as
// long.
PyObject* launch_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *like, *outputs, *order, *extents, *maps, *numbers, *stream_of, *index, *workspaces, *kept;
  unsigned long long config, function, parameters, slots, launch, replace;
  if (!PyArg_ParseTuple(arguments, "OO!O!O!O!O!(KKKK)(KK)OOOO", &like, &PyTuple_Type, &outputs, &PyTuple_Type, &order,
                        &PyTuple_Type, &extents, &PyTuple_Type, &maps, &PyTuple_Type, &numbers, &config, &function,
                        &parameters, &slots, &launch, &replace, &stream_of, &index, &workspaces, &kept))
    return nullptr;
  const auto self = reinterpret_cast<Launch*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  const Object owner(reinterpret_cast<PyObject*>(self));
  new (&self->outputs) decltype(self->outputs)();
  new (&self->device) at::Device(THPVariable_Unpack(like).device());
  new (&self->order) decltype(self->order)();
  new (&self->extents) decltype(self->extents)();
  new (&self->maps) decltype(self->maps)();
  new (&self->numbers) decltype(self->numbers)();
  new (&self->stream_of) Object(Object::borrowed(stream_of));
  new (&self->index) Object(Object::borrowed(index));
  new (&self->workspaces) Object(Object::borrowed(workspaces));
  new (&self->kept) Object(Object::borrowed(kept));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) {
    PyObject *shape, *of_dtype;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(outputs, i), "O!O", &PyTuple_Type, &shape, &of_dtype)) return nullptr;
    Output output{{}, THPVariable_Unpack(of_dtype).scalar_type()};
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(shape); ++k)
      output.shape.push_back(static_cast<std::int64_t>(number_at(shape, k)));
    self->outputs.push_back(std::move(output));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(order); ++i) self->order.push_back(number_at(order, i));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(extents); ++i) self->extents.push_back(number_at(extents, i));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(maps); ++i) {
    PyObject* const map = PyTuple_GET_ITEM(maps, i);
    self->maps.push_back({number_at(map, 0), reinterpret_cast<void*>(number_at(map, 1)), number_at(map, 2)});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); ++i) {
    PyObject* name;
    Py_ssize_t slot;
    int kind, required;
    unsigned long long bits;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(numbers, i), "OnipK", &name, &slot, &kind, &required, &bits)) return nullptr;
    self->numbers.push_back(
        {Object::borrowed(name), static_cast<std::size_t>(slot), static_cast<char>(kind), required != 0, bits});
  }
  self->config = reinterpret_cast<LaunchConfig*>(config);
  self->function = reinterpret_cast<void*>(function);
  self->parameters = reinterpret_cast<void**>(parameters);
  self->slots = reinterpret_cast<std::uint64_t*>(slots);
  self->launch = reinterpret_cast<LaunchFunction>(launch);
  self->replace = reinterpret_cast<ReplaceFunction>(replace);
  return PyErr_Occurred() ? nullptr : Py_NewRef(owner.object);
  END_HANDLE_TH_ERRORS
}

void launch_dealloc(PyObject* object) {
  const auto self = reinterpret_cast<Launch*>(object);
  std::destroy_at(&self->outputs);
  std::destroy_at(&self->order);
  std::destroy_at(&self->extents);
  std::destroy_at(&self->maps);
  std::destroy_at(&self->numbers);
  for (Object* const one : {&self->stream_of, &self->index, &self->workspaces, &self->kept}) std::destroy_at(one);
  PyTypeObject* const type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyType_Slot LAUNCH_SLOTS[] = {
    {Py_tp_new, reinterpret_cast<void*>(launch_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(launch_dealloc)},
    {0, nullptr},
};
PyType_Spec LAUNCH_SPEC = {"kgen_warm_calls.Launch", sizeof(Launch), 0, Py_TPFLAGS_DEFAULT, LAUNCH_SLOTS};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "kgen_warm_calls", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_kgen_warm_calls() {
  PyObject* const module = PyModule_Create(&MODULE);
  if (!module) return nullptr;
  const Object calls(PyType_FromSpec(&CALLS_SPEC)), launch(PyType_FromSpec(&LAUNCH_SPEC));
  if (!calls || !launch || PyModule_AddObjectRef(module, "Calls", calls.object) < 0 ||
      PyModule_AddObjectRef(module, "Launch", launch.object) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}

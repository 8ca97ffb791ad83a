// A prepared launch of one kind of call, or of several kernels one after another: `Launch` of the extension.
//
// It holds what kgen.gpu.kernel has prepared, by addresses: it writes a call's addresses and numbers into the slots
// that the kernel's parameters are, and calls the driver. What Python is asked for is the stream, and workspaces.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace kgen {

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
  PyObject* release() { return std::exchange(object, nullptr); }
  static Object borrowed(PyObject* object) { return Object(Py_XNewRef(object)); }
  explicit operator bool() const { return object != nullptr; }
};

// As in CUDA's driver API: CUlaunchConfig, cuLaunchKernelEx, cuTensorMapReplaceAddress and cuStreamIsCapturing.
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  std::uint64_t stream;
  void* attributes;
  unsigned attribute_count;
};
using LaunchFunction = int (*)(const LaunchConfig*, void* function, void** parameters, void** extra);
using ReplaceFunction = int (*)(void* map, std::uint64_t address);
using CapturingFunction = int (*)(std::uint64_t stream, int* status);

using Addresses = c10::SmallVector<std::uint64_t, 8>;

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
  std::vector<std::uint64_t*> slots;  // of each kernel that takes it
  char kind;                          // 'f', 'd', 'i' or 'q', as struct's
  bool required;
  std::uint64_t value;  // where it is not given
};

struct Part;

struct Launch {
  bool busy = false;  // a call is using the slots: the GIL may change hands in it
  std::vector<Output> outputs;
  at::Device device{at::kCPU};
  std::vector<std::uint64_t> extents;
  std::vector<Number> numbers;
  Object stream_of, index, workspaces;
  // Of one kernel.
  std::vector<std::size_t> order;  // of the addresses of operands and workspaces, a slot each
  std::vector<ShownMap> maps;
  LaunchConfig* config = nullptr;
  void* function = nullptr;
  void** parameters = nullptr;
  std::uint64_t* slots = nullptr;
  LaunchFunction launch = nullptr;
  ReplaceFunction replace = nullptr;
  CapturingFunction capturing = nullptr;
  unsigned attributes = 0;  // with the one that lets it start early, where it has that
  Object overlaps;          // whether it may on a stream that is captured; None where it never does
  Object kept;
  // Of several: `lock` is held while they are launched, since others have the same workspaces.
  std::vector<Part> parts;
  Object lock;
};

// A launch of several: the places of its operands among the operands and workspaces of all.
struct Part {
  Object owner;
  Launch* launch;
  std::vector<std::size_t> places;
};

struct LaunchObject {
  PyObject_HEAD;
  Launch* launch;
};

inline Launch* launch_of(PyObject* object) { return reinterpret_cast<LaunchObject*>(object)->launch; }

// The bits of a number in its parameter; false where it is another's, or beyond it: Python refuses it by name.
inline bool encode(PyObject* value, char kind, std::uint64_t& bits) {
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
inline bool set_numbers(Launch* launch, PyObject* named) {
  const Py_ssize_t given = PyDict_GET_SIZE(named);
  Py_ssize_t found = 0;
  for (const Number& number : launch->numbers) {
    PyObject* const value = given ? PyDict_GetItem(named, number.name.object) : nullptr;
    std::uint64_t bits = number.value;
    if (value ? !encode(value, number.kind, bits) : number.required) return false;
    found += value != nullptr;
    for (std::uint64_t* const slot : number.slots) *slot = bits;
  }
  return found == given;
}

// Adds the addresses of workspaces on the stream, which Python keeps; `held` is to live until the launch is made.
inline bool add_workspaces(Launch* launch, PyObject* stream, Addresses& addresses, Object& held) {
  held = Object(PyObject_CallOneArg(launch->workspaces.object, stream));
  if (!held) return false;
  PyObject* const places = PyTuple_GetItem(held.object, 0);
  for (Py_ssize_t i = 0; places && i < PyList_Size(places); ++i)
    addresses.push_back(PyLong_AsUnsignedLongLong(PyList_GET_ITEM(places, i)));
  return !PyErr_Occurred();
}

// Asks Python, for a stream that is captured, whether a launch may start early; false with an exception.
inline bool set_overlap(Launch* launch, PyObject* stream) {
  int status = 0;
  launch->config->attribute_count = launch->attributes;
  if (launch->overlaps.object == Py_None || launch->capturing(launch->config->stream, &status) || !status) return true;
  const Object allowed(PyObject_CallOneArg(launch->overlaps.object, stream));
  launch->config->attribute_count -= allowed.object != Py_True;
  return static_cast<bool>(allowed);
}

// Has one kernel launched; as `submit`.
inline int submit_kernel(Launch* launch, PyObject* stream, const Addresses& addresses) {
  launch->config->stream = PyLong_AsUnsignedLongLong(stream);
  if (!set_overlap(launch, stream)) return -1;
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

// Launches with these addresses on a stream, or on torch's current one; the driver's result, or -1 with an exception.
inline int submit(Launch* launch, Addresses& addresses, PyObject* stream = nullptr) {
  const Object current(stream ? Py_NewRef(stream)
                              : PyObject_CallOneArg(launch->stream_of.object, launch->index.object));
  if (!current) return -1;
  Object held;
  if (launch->workspaces.object != Py_None && !add_workspaces(launch, current.object, addresses, held)) return -1;
  if (launch->parts.empty()) return submit_kernel(launch, current.object, addresses);
  for (const Part& part : launch->parts) {
    Addresses own;
    for (const std::size_t place : part.places) own.push_back(addresses[place]);
    if (const int refused = submit(part.launch, own, current.object)) return refused;
  }
  return 0;
}

// A launch in use: by one call at a time, and no other of several kernels with it. Not `held` where that is not so.
struct Using {
  Launch* launch;
  bool held;
  explicit Using(Launch* launch) : launch(launch), held(!launch->busy && lock()) {
    if (held) launch->busy = true;
  }
  ~Using() {
    if (!held) return;
    launch->busy = false;
    if (!launch->lock) return;
    PyObject *type, *value, *traceback;  // there may be an exception
    PyErr_Fetch(&type, &value, &traceback);
    Object(PyObject_CallMethod(launch->lock.object, "release", nullptr));
    PyErr_Restore(type, value, traceback);
  }
  bool lock() const {
    if (!launch->lock) return true;
    const Object taken(PyObject_CallMethod(launch->lock.object, "acquire", "i", 0));
    return taken.object == Py_True;
  }
};

// The type.

inline std::uint64_t number_at(PyObject* sequence, Py_ssize_t index) {
  return PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(sequence, index));
}

template <class Number>
std::vector<Number> numbers_of(PyObject* tuple) {
  std::vector<Number> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) found.push_back(static_cast<Number>(number_at(tuple, i)));
  return found;
}

// What all launches have: see `launch_new`. Null with an exception.
inline std::unique_ptr<Launch> launch_for(PyObject* like, PyObject* outputs, PyObject* extents, PyObject* stream_of,
                                          PyObject* index, PyObject* workspaces) {
  auto launch = std::make_unique<Launch>();
  launch->device = THPVariable_Unpack(like).device();
  launch->extents = numbers_of<std::uint64_t>(extents);
  launch->stream_of = Object::borrowed(stream_of);
  launch->index = Object::borrowed(index);
  launch->workspaces = Object::borrowed(workspaces);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) {
    PyObject *shape, *of_dtype;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(outputs, i), "O!O", &PyTuple_Type, &shape, &of_dtype)) return nullptr;
    launch->outputs.push_back({numbers_of<std::int64_t>(shape), THPVariable_Unpack(of_dtype).scalar_type()});
  }
  return launch;
}

inline PyObject* launch_object(PyTypeObject* type, std::unique_ptr<Launch> launch) {
  if (PyErr_Occurred()) return nullptr;
  PyObject* const self = type->tp_alloc(type, 0);
  if (self) reinterpret_cast<LaunchObject*>(self)->launch = launch.release();
  return self;
}

// Launch(device, outputs, order, extents, maps, numbers, (config, function, parameters, slots),
//        (launch, replace, capturing), overlaps, stream_of, index, workspaces, kept); tuples everywhere, memory and
//        functions by their addresses:
// outputs ((shape, an empty tensor of its dtype), ...); maps ((slot, map, address), ...);
// numbers ((name, slot, kind, required, bits), ...); workspaces a function of the stream, or None; kept: what lives as
// long.
inline PyObject* launch_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *like, *outputs, *order, *extents, *maps, *numbers, *overlaps, *stream_of, *index, *workspaces, *kept;
  unsigned long long config, function, parameters, slots, entry, replace, capturing;
  if (!PyArg_ParseTuple(arguments, "OO!O!O!O!O!(KKKK)(KKK)OOOOO", &like, &PyTuple_Type, &outputs, &PyTuple_Type, &order,
                        &PyTuple_Type, &extents, &PyTuple_Type, &maps, &PyTuple_Type, &numbers, &config, &function,
                        &parameters, &slots, &entry, &replace, &capturing, &overlaps, &stream_of, &index, &workspaces,
                        &kept))
    return nullptr;
  auto launch = launch_for(like, outputs, extents, stream_of, index, workspaces);
  if (!launch) return nullptr;
  launch->order = numbers_of<std::size_t>(order);
  launch->kept = Object::borrowed(kept);
  launch->config = reinterpret_cast<LaunchConfig*>(config);
  launch->function = reinterpret_cast<void*>(function);
  launch->parameters = reinterpret_cast<void**>(parameters);
  launch->slots = reinterpret_cast<std::uint64_t*>(slots);
  launch->launch = reinterpret_cast<LaunchFunction>(entry);
  launch->replace = reinterpret_cast<ReplaceFunction>(replace);
  launch->capturing = reinterpret_cast<CapturingFunction>(capturing);
  launch->attributes = launch->config->attribute_count;
  launch->overlaps = Object::borrowed(overlaps);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(maps); ++i) {
    PyObject* const map = PyTuple_GET_ITEM(maps, i);
    launch->maps.push_back({number_at(map, 0), reinterpret_cast<void*>(number_at(map, 1)), number_at(map, 2)});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); ++i) {
    PyObject* name;
    Py_ssize_t slot;
    int kind, required;
    unsigned long long bits;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(numbers, i), "OnipK", &name, &slot, &kind, &required, &bits)) return nullptr;
    launch->numbers.push_back(
        {Object::borrowed(name), {launch->slots + slot}, static_cast<char>(kind), required != 0, bits});
  }
  return launch_object(type, std::move(launch));
  END_HANDLE_TH_ERRORS
}

// Launch.of_several(device, outputs, extents, parts, stream_of, index, workspaces, lock): launches in order, with the
// numbers that these have; parts ((launch, places), ...).
inline PyObject* launch_of_several(PyObject* type, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *like, *outputs, *extents, *parts, *stream_of, *index, *workspaces, *lock;
  if (!PyArg_ParseTuple(arguments, "OO!O!O!OOOO", &like, &PyTuple_Type, &outputs, &PyTuple_Type, &extents,
                        &PyTuple_Type, &parts, &stream_of, &index, &workspaces, &lock))
    return nullptr;
  auto launch = launch_for(like, outputs, extents, stream_of, index, workspaces);
  if (!launch) return nullptr;
  launch->lock = Object::borrowed(lock);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); ++i) {
    PyObject *owner, *places;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parts, i), "OO!", &owner, &PyTuple_Type, &places)) return nullptr;
    launch->parts.push_back({Object::borrowed(owner), launch_of(owner), numbers_of<std::size_t>(places)});
    for (const Number& own : launch_of(owner)->numbers) {
      auto known = launch->numbers.begin();
      while (known != launch->numbers.end() && PyUnicode_Compare(known->name.object, own.name.object)) ++known;
      if (known == launch->numbers.end())
        known =
            launch->numbers.insert(known, {Object::borrowed(own.name.object), {}, own.kind, own.required, own.value});
      known->slots.insert(known->slots.end(), own.slots.begin(), own.slots.end());
    }
  }
  return launch_object(reinterpret_cast<PyTypeObject*>(type), std::move(launch));
  END_HANDLE_TH_ERRORS
}

inline void launch_dealloc(PyObject* object) {
  delete launch_of(object);
  PyTypeObject* const type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

inline PyMethodDef LAUNCH_METHODS[] = {
    {"of_several", launch_of_several, METH_VARARGS | METH_CLASS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

inline PyType_Slot LAUNCH_SLOTS[] = {
    {Py_tp_new, reinterpret_cast<void*>(launch_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(launch_dealloc)},
    {Py_tp_methods, LAUNCH_METHODS},
    {0, nullptr},
};
inline PyType_Spec LAUNCH_SPEC = {"kgen_warm_calls.Launch", sizeof(LaunchObject), 0, Py_TPFLAGS_DEFAULT, LAUNCH_SLOTS};

}  // namespace kgen

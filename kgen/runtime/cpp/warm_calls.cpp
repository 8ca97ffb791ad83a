// Warm calls of operators: from torch's tensors to the driver's launch without Python between.
//
// What is here does as KernelOperator.__call__ and GpuPlan do (kgen/runtime), which say what a call is; whatever is not
// an ordinary call of a kind that was met before is theirs. `Calls` (calls.h) is the look-up of one operator, `Launch`
// (launch.h) what it leads to. Calls hold the GIL but for the launch itself, where a full queue makes it wait.

#include "calls.h"
#include "gradients.h"
#include "launch.h"

namespace kgen {
namespace {

constexpr std::size_t LIMIT = 4096;  // entries of an operator; beyond it all are dropped

// Makes it the kind of calls of which gradients are wanted; false where these are too many to tell.
bool of_step(Operands& operands) {
  operands.key.push_back(static_cast<std::int64_t>(operands.require_gradients));
  return operands.tensors.size() <= 64;
}

// What Python's plan makes of a call.
PyObject* by_plan(Entry* entry, const Operands& operands, PyObject* named) {
  const Object plan = Object::borrowed(entry->plan.object);  // the call may drop the entry
  const auto count = static_cast<Py_ssize_t>(operands.tensors.size());
  const Object tensors(PyTuple_New(count)), addresses(PyList_New(count));
  if (!tensors || !addresses) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject *const tensor = THPVariable_Wrap(*operands.tensors[i]), *const address = PyLong_FromUnsignedLongLong(
                                                                         operands.addresses[i]);
    if (tensor) PyTuple_SET_ITEM(tensors.object, i, tensor);
    if (address) PyList_SET_ITEM(addresses.object, i, address);
    if (!tensor || !address) return nullptr;
  }
  return PyObject_CallFunctionObjArgs(plan.object, tensors.object, addresses.object, named, nullptr);
}

// One tensor, or the first `count` of several as a tuple.
PyObject* wrapped(const at::Tensor* tensors, std::size_t count) {
  return count == 1 ? THPVariable_Wrap(*tensors) : tuple_of(tensors, count).release();
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

// A call of which gradients are wanted, `operands` before `of_step`. NotImplemented where Python has to make it.
PyObject* by_step(const Step& step, const Operands& operands, PyObject* given, PyObject* named) {
  const auto calls = reinterpret_cast<Calls*>(step.calls.object);
  variable_list results;
  {
    const at::AutoGradMode off(false);
    const Entry* const entry = find(calls, operands);
    if (!entry || !by_launch(entry, operands, operands.tensors.size(), named, results)) {
      if (PyErr_Occurred()) return nullptr;
      Object found(make_call(calls, given, Py_None, named));
      if (!found || found.object == Py_NotImplemented) return found.release();
      results = tensors_of(found.object);
    }
  }
  connect(step, operands, named, results);
  return wrapped(results.data(), step.count);
}

// The results, or NotImplemented where Python has to make the call.
PyObject* make_call(Calls* self, PyObject* given, PyObject* out, PyObject* named) {
  if (static_cast<std::size_t>(PyTuple_GET_SIZE(given)) != self->inputs || !is_ordinary())
    return Py_NewRef(Py_NotImplemented);
  Operands operands;
  if (!operands.take(given, out)) return Py_NewRef(Py_NotImplemented);
  if (operands.require_gradients && at::GradMode::is_enabled()) {
    if (out != Py_None || !operands.have_memory || !self->trained) return Py_NewRef(Py_NotImplemented);
    const std::size_t own = operands.key.size();
    of_step(operands);
    if (Entry* const entry = find(self, operands)) {
      const std::shared_ptr<Step> step = entry->step;  // the call may drop the entry
      operands.key.resize(own);
      PyObject* const found = by_step(*step, operands, given, named);
      if (found != Py_NotImplemented) return found;
      Py_DECREF(found);
    }
    return PyObject_Call(self->trained.object, given, named);
  }
  Entry* const entry = find(self, operands);
  if (!entry) return Py_NewRef(Py_NotImplemented);
  if (entry->launch.object == Py_None) return by_plan(entry, operands, named);
  variable_list made;
  if (by_launch(entry, operands, self->inputs, named, made)) {
    for (std::size_t i = self->inputs; i < operands.tensors.size(); ++i) made.push_back(*operands.tensors[i]);
    return wrapped(made.data(), made.size());
  }
  if (PyErr_Occurred()) return nullptr;
  if (Entry* const again = find(self, operands)) {
    PyObject* const checked = by_plan(again, operands, named);
    if (Entry* const sound = checked ? find(self, operands) : nullptr) sound->checked = operands.addresses;
    return checked;
  }
  return Py_NewRef(Py_NotImplemented);
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
  if (operands.take(given, Py_None) && of_step(operands)) {
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

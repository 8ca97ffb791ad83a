// Calls of which gradients are wanted, to autograd: as Plain of kgen.runtime.autograd, whose Step says what is kept and
// makes the gradients.

#pragma once

#include <ATen/Context.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <string>
#include <type_traits>

#include "calls.h"
#include "launch.h"

namespace kgen {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using NodePointer = decltype(torch::autograd::Edge::function);

// What calls of one kind have in common, as Python has worked it out.
struct Step {
  Object calls;                              // that make the results, those for the gradients too
  Object step;                               // kgen.runtime.autograd.Step
  std::vector<std::size_t> inputs, outputs;  // that are kept
  std::size_t count = 0;                     // of results that the caller gets
};

[[noreturn]] inline void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

// A tuple of tensors, None for those that are not there.
inline Object tuple_of(const at::Tensor* tensors, std::size_t count) {
  Object all(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; all && i < count; ++i) {
    PyObject* const one = THPVariable_Wrap(tensors[i]);
    if (!one) throw_python_error();
    PyTuple_SET_ITEM(all.object, static_cast<Py_ssize_t>(i), one);
  }
  if (!all) throw_python_error();
  return all;
}

// The tensors that a call gave: one, or a tuple.
inline variable_list tensors_of(PyObject* results) {
  if (!PyTuple_Check(results)) return {THPVariable_Unpack(results)};
  variable_list found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i)
    found.push_back(THPVariable_Unpack(PyTuple_GET_ITEM(results, i)));
  return found;
}

// The tensor at a place, in the shapes of a tuple one after the other: of (place, shapes).
inline at::Tensor reshaped(const at::Tensor* tensors, PyObject* taken) {
  at::Tensor x = tensors[PyLong_AsSsize_t(PyTuple_GET_ITEM(taken, 0))];
  PyObject* const shapes = PyTuple_GET_ITEM(taken, 1);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shapes); ++i)
    x = x.reshape(numbers_of<std::int64_t>(PyTuple_GET_ITEM(shapes, i)));
  return x;
}

// Those of a call's numbers that are named.
inline Object named_of(PyObject* names, PyObject* numbers) {
  Object found(PyDict_New());
  for (Py_ssize_t i = 0; found && i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names, i);
    PyObject* const number = PyDict_GetItem(numbers, name);
    if (number && PyDict_SetItem(found.object, name, number) < 0) throw_python_error();
  }
  if (!found) throw_python_error();
  return found;
}

// One call in autograd's graph.
struct Gradients : Node {
  Object step, numbers;
  std::vector<SavedVariable> saved;
  bool released = false;

  ~Gradients() override {
    if (!Py_IsInitialized()) {
      for (Object* const one : {&step, &numbers}) one->object = nullptr;
      return;
    }
    const pybind11::gil_scoped_acquire held;
    for (Object* const one : {&step, &numbers}) Object(std::exchange(one->object, nullptr));
  }

  std::string name() const override { return "KgenGradients"; }

  void release_variables() override {
    released = true;
    for (SavedVariable& one : saved) one.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
    const pybind11::gil_scoped_acquire held;
    variable_list values;  // as Step.values
    for (SavedVariable& one : saved) values.push_back(one.unpack(getptr()));
    values.insert(values.end(), grads.begin(), grads.end());
    variable_list made;
    if (by_calls(values, grads, made)) return made;
    const Object kept = tuple_of(values.data(), saved.size()), given = tuple_of(grads.data(), grads.size());
    static PyObject* const method = PyUnicode_InternFromString("gradients");
    const Object found(
        PyObject_CallMethodObjArgs(step.object, method, numbers.object, kept.object, given.object, nullptr));
    if (!found) throw_python_error();
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(found.object); ++i) {
      PyObject* const one = PyList_GET_ITEM(found.object, i);
      made.push_back(one == Py_None ? at::Tensor() : THPVariable_Unpack(one));
    }
    return made;
  }

  // As Step.gradients, by what Step.told has (see Way.told); false where the gradients are Python's to make.
  bool by_calls(const variable_list& values, const variable_list& grads, variable_list& made) {
    std::uint64_t kind = at::globalContext().deterministicAlgorithms();
    for (std::size_t k = 0; k < grads.size(); ++k) {
      if (k >= 32 || (grads[k].defined() && grads[k].is_neg())) return false;
      kind |= std::uint64_t{grads[k].defined()} << (k + 1);
    }
    if (torch::autograd::ForwardADLevel::try_get_by_idx(0)) return false;
    static PyObject* const name = PyUnicode_InternFromString("told");
    const Object told(PyObject_GetAttr(step.object, name)), key(PyLong_FromUnsignedLongLong(kind));
    if (!told || !key) throw_python_error();
    PyObject* const known = PyDict_GetItem(told.object, key.object);
    if (!known || known == Py_None) return false;
    const Object way = Object::borrowed(known);  // the call may drop it
    const auto part = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(way.object, i); };
    PyObject *const taken = part(1), *const shown = part(3);
    variable_list given;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(taken); ++i)
      given.push_back(reshaped(values.data(), PyTuple_GET_ITEM(taken, i)));
    const Object named = named_of(part(2), numbers.object);
    variable_list results;
    if (!launched(reinterpret_cast<Calls*>(part(0)), given, named.object, results)) {
      const Object tensors = tuple_of(given.data(), given.size());
      const Object found(PyObject_CallFunctionObjArgs(part(0), tensors.object, Py_None, named.object, nullptr));
      if (!found) throw_python_error();
      if (found.object == Py_NotImplemented) return false;
      results = tensors_of(found.object);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shown); ++i) {
      PyObject* const one = PyTuple_GET_ITEM(shown, i);
      made.push_back(one == Py_None ? at::Tensor() : reshaped(results.data(), one));
    }
    return true;
  }

  // Whether the results were made by the launch of an ordinary call.
  static bool launched(Calls* calls, const variable_list& given, PyObject* named, variable_list& results) {
    Operands operands;
    if (!is_ordinary() || !operands.take(given)) return false;
    if (operands.require_gradients && at::GradMode::is_enabled()) return false;
    const Entry* const entry = find(calls, operands);
    if (entry && by_launch(entry, operands, given.size(), named, results)) return true;
    if (PyErr_Occurred()) throw_python_error();
    results.clear();
    return false;
  }
};

template <class Kind, class Pointer = NodePointer>
Pointer make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
    return Pointer(new Kind, [](auto* node) { deleteNode(node); });  // of a deep graph without recursion
  else
    return c10::make_intrusive<Kind>();
}

// Enters a call into autograd's graph: `given` were its inputs, `results` are new.
inline void connect(const Step& step, const Operands& given, PyObject* numbers, const variable_list& results) {
  const NodePointer node = make_node<Gradients>();
  auto& gradients = static_cast<Gradients&>(*node);
  gradients.step = Object::borrowed(step.step.object);
  gradients.numbers = Object::borrowed(numbers);
  torch::autograd::edge_list edges;
  for (const at::Tensor* x : given.tensors) edges.push_back(torch::autograd::impl::gradient_edge(*x));
  node->set_next_edges(std::move(edges));
  for (const at::Tensor& y : results) {
    const bool differentiable = torch::autograd::isDifferentiableType(y.scalar_type());
    torch::autograd::set_history(differentiable ? y : at::Tensor(), node);
  }
  for (const std::size_t i : step.inputs) gradients.saved.emplace_back(*given.tensors[i], false);
  for (const std::size_t k : step.outputs) gradients.saved.emplace_back(results[k], true);
}

}  // namespace kgen

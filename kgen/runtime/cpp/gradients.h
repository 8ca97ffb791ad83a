// Calls of which gradients are wanted, to autograd: as Plain of kgen.runtime.autograd, whose Step says what is kept and
// makes the gradients.

#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <string>
#include <type_traits>

#include "launch.h"

namespace kgen {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePointer = decltype(torch::autograd::Edge::function);

// What calls of one kind have in common, as Python has worked it out.
struct Step {
  Object calls;                              // that make the results, those for the gradients too
  Object step;                               // kgen.runtime.autograd.Step
  std::vector<std::size_t> inputs, outputs;  // that are kept
  std::size_t count = 0;                     // of results that the caller gets
};

// A tuple of tensors, None for those that are not there; null with an exception.
template <class Function>
Object tuple_of(std::size_t count, Function tensor) {
  Object all(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; all && i < count; ++i) {
    PyObject* const one = THPVariable_Wrap(tensor(i));
    if (!one) return Object();
    PyTuple_SET_ITEM(all.object, static_cast<Py_ssize_t>(i), one);
  }
  return all;
}

[[noreturn]] inline void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
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
    const Object kept = tuple_of(saved.size(), [&](std::size_t i) { return saved[i].unpack(getptr()); });
    const Object given = tuple_of(grads.size(), [&](std::size_t i) { return grads[i]; });
    if (!kept || !given) throw_python_error();
    static PyObject* const method = PyUnicode_InternFromString("gradients");
    const Object found(
        PyObject_CallMethodObjArgs(step.object, method, numbers.object, kept.object, given.object, nullptr));
    if (!found) throw_python_error();
    variable_list made;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(found.object); ++i) {
      PyObject* const one = PyList_GET_ITEM(found.object, i);
      made.push_back(one == Py_None ? at::Tensor() : THPVariable_Unpack(one));
    }
    return made;
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
inline void connect(const Step& step, PyObject* given, PyObject* numbers, const Object& results) {
  const NodePointer node = make_node<Gradients>();
  auto& gradients = static_cast<Gradients&>(*node);
  gradients.step = Object::borrowed(step.step.object);
  gradients.numbers = Object::borrowed(numbers);
  const auto input = [&](std::size_t i) -> const at::Tensor& {
    return THPVariable_Unpack(PyTuple_GET_ITEM(given, static_cast<Py_ssize_t>(i)));
  };
  const auto result = [&](std::size_t k) -> const at::Tensor& {
    const bool several = PyTuple_Check(results.object);
    return THPVariable_Unpack(several ? PyTuple_GET_ITEM(results.object, static_cast<Py_ssize_t>(k)) : results.object);
  };
  torch::autograd::edge_list edges;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i)
    edges.push_back(torch::autograd::impl::gradient_edge(input(static_cast<std::size_t>(i))));
  node->set_next_edges(std::move(edges));
  const Py_ssize_t count = PyTuple_Check(results.object) ? PyTuple_GET_SIZE(results.object) : 1;
  for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) {
    const bool differentiable = torch::autograd::isDifferentiableType(result(k).scalar_type());
    torch::autograd::set_history(differentiable ? result(k) : at::Tensor(), node);
  }
  for (const std::size_t i : step.inputs) gradients.saved.emplace_back(input(i), false);
  for (const std::size_t k : step.outputs) gradients.saved.emplace_back(result(k), true);
}

}  // namespace kgen

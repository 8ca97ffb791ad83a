"""External computations: what they take, how another process finds their functions, and what is no function of a module."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import kgen
from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr, Shape
from kgen.dsl.external import External, external, is_external
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.size import dims
from kgen.dsl.types import f32, i64

(N,) = dims("N")
X = Expr("input", (), f32, Shape((N,)), "x")


def largest(x):
    return x.sort()


def halved(x):
    x *= 0.5


class Holder:
    @staticmethod
    def inside(x):
        return (x,)


def test_results_are_of_one_computation() -> None:
    values, places = external("sorted", [(f32, (N,)), (i64, (N,))], X, reference=largest)
    assert is_external((values, places), "sorted")
    assert not is_external((values, places), "nms")
    assert not is_external((places, values), "sorted")
    assert not is_external((values, X), "sorted")
    (moved,) = external("sorted", [(f32, (N,))], X + 1.0, reference=largest)
    assert not is_external((moved,), "sorted")


def test_a_graph_that_holds_one_can_be_sent_to_another_process() -> None:
    def sorted_values(x: Tensor[f32, N]) -> Tensor[f32, N]:
        return external("sorted", [(f32, (N,))], x, reference=largest, sample=halved)[0]

    graph = Operator(sorted_values).graphs[0]
    again = pickle.loads(pickle.dumps(graph))
    assert again == graph
    assert (again.results[0].attr.reference, again.results[0].attr.sample) == (largest, halved)
    inside = External("held", Holder.inside, 0)
    assert pickle.loads(pickle.dumps(inside)).reference is Holder.inside


def test_functions_without_a_module_in_a_file_are_told_of() -> None:
    def local(x):
        return (x,)

    for function in (local, lambda x: (x,), eval(compile("lambda x: x", "<input>", "eval"))):
        with pytest.raises(DefinitionError, match="no function of a module in a file"):
            pickle.dumps(External("local", function, 0))


def test_functions_of_a_script_are_found_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import pickle, sys\n"
        "from kgen.dsl.external import External\n"
        "def reference(x):\n"
        "    return (x + 1,)\n"
        "if __name__ == '__main__':\n"
        "    sys.stdout.buffer.write(pickle.dumps(External('one_more', reference, 0)))\n"
    )
    sent = subprocess.run([sys.executable, str(script)], capture_output=True, check=True, timeout=60).stdout
    assert pickle.loads(sent).reference(1) == (2,)


def test_the_public_name() -> None:
    assert kgen.external is external

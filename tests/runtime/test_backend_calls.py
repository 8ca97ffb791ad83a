"""torch.compile(..., backend="kgen") as torch has it: odd functions, mutated inputs, views, options, name, a second process."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kgen.dsl.errors import ArgumentError
from kgen.runtime.backend import backend

EMULATED = {"emulate": True, "rest": "eager"}
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def test_a_mutated_input_and_a_view_of_a_result_are_as_in_torch():
    class Updating(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            y = self.linear(x)
            self.mean.mul_(0.5).add_(y.mean(0))
            rows = torch.softmax(y, -1)
            return y, rows, rows.t(), y[1:], x.view(-1)

    torch.manual_seed(0)
    model = Updating()
    twin, x = copy.deepcopy(model), torch.randn(4, 6)
    with torch.no_grad():
        run = torch.compile(twin, backend=backend, options=EMULATED)
        for _ in range(2):
            for found, expected in zip(run(x), model(x)):
                torch.testing.assert_close(found, expected)
                assert found.stride() == expected.stride()
    torch.testing.assert_close(twin.mean, model.mean)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.double().softmax(-1).float(),
        lambda x: x.softmax(0),
        lambda x: x.t().softmax(-1),
        lambda x: torch.logsumexp(x, -1) + x.amax(),
        lambda x: (x > 0).sum(-1) + x.argmax(-1),
        lambda x: (x[:, :3] @ x[:3, :3]).relu() + x[0, 0],
        lambda x: (x / x.norm(dim=-1, keepdim=True)).expand(2, 4, 6).sum(0),
        lambda x: F.normalize(x, dim=-1) @ x.t(),
        lambda x: torch.var_mean(x, -1, correction=0)[1].exp() * x.mean(),
        lambda x: x[:0].softmax(-1).sum(-1),
        lambda x: torch.complex(x, x).abs().mean(-1),
    ],
)
def test_odd_calls_are_as_in_torch(function):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(torch.compile(function, backend=backend, options=EMULATED)(x), function(x))


def test_options_are_checked():
    for options in ({"rest": "triton"}, {"emulate": 1}):
        with pytest.raises(ArgumentError, match="expected inductor or eager, True or False"):
            backend(torch.fx.symbolic_trace(nn.Identity()), [torch.ones(2)], options=options)
    for options in ({"rest": "eager", "emulat": True}, {"emulat": True}):
        with pytest.raises(
            ArgumentError, match="no option is called emulat; expected rest, emulate or one of Inductor's"
        ):
            backend(torch.fx.symbolic_trace(nn.Identity()), [torch.ones(2)], options=options)
    run = torch.compile(torch.sin, backend=backend, options={"rest": "eager", "max-autotune": True})
    assert torch.equal(run(torch.ones(2)), torch.ones(2).sin())


def test_torch_finds_the_backend_by_its_name():
    text = (ROOT / "pyproject.toml").read_text()
    entry = metadata.EntryPoint("kgen", "kgen.runtime.backend:backend", "torch_dynamo_backends")
    assert f'[project.entry-points.torch_dynamo_backends]\nkgen = "{entry.value}"' in text
    assert entry.load() is backend


SECOND = """
import torch
from kgen.runtime.backend import backend
torch.manual_seed(0)
x = torch.randn(4, 8)
run = torch.compile(lambda x: torch.softmax(x.relu() @ x.t(), -1).sin(), backend=backend, options={"emulate": True})
print(run(x).sum().item(), torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"])
"""


def test_a_second_process_runs_from_inductors_cache(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    command = [sys.executable, "-c", SECOND]
    texts = [subprocess.run(command, env=environment, capture_output=True, text=True).stdout for _ in range(2)]
    (first, missed), (second, hit) = (text.split() for text in texts)
    assert (missed, hit) == ("0", "1")
    assert first == second

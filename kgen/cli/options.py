"""Options: the arguments that several verbs share, as annotated types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_OPERATOR = typer.Argument(metavar="OP", help="A shipped operator (kgen list), or one of your own: file.py:name.")
Operator = Annotated[str, _OPERATOR]
OptionalOperator = Annotated[str | None, _OPERATOR]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.PY:MAKE", help="A function that returns a model and what it is called with, in a tuple."
    ),
]
_SHAPE = "4096x4096x4096 in the order that `kgen show OP` gives, or M=4096,N=64,K=64; leading sizes: ...=8x16,N=64."
Shape = Annotated[str | None, typer.Option("--shape", metavar="SIZES", help=_SHAPE)]
Shapes = Annotated[list[str] | None, typer.Option("--shape", metavar="SIZES", help=f"{_SHAPE} Repeatable.")]
Suite = Annotated[str | None, typer.Option(metavar="NAME", help="A named list of shapes, see kgen show OP.")]
DType = Annotated[
    str | None, typer.Option("--dtype", metavar="TYPES", help="f16; or f16,f32 where the operands differ.")
]
Transposed = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Operands stored with their last two axes swapped, as in a,b."),
]
Layout = Annotated[
    str | None,
    typer.Option(
        metavar="NN|NT|TN|TT", help="How a product's two matrices are stored: N as [M, K], [K, N]; T transposed."
    ),
]
Gpu = Annotated[
    str,
    typer.Option(
        metavar="auto|INDEX|NAME|sm_XX", help="This machine's GPU, or one that need not be here: H200, sm_90."
    ),
]
Database = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="Tuning database: a path or SQLAlchemy URL; default: kgen db path."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]
Config = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="A config as kgen prints it: MmaGemm(BM=128, ...); default: the best one known."),
]
Schedules = Annotated[
    list[str] | None,
    typer.Option("--schedule", metavar="NAME", help="Only configs of this schedule, see kgen show OP. Repeatable."),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE[,VALUE]", help="Only configs with these values of a field: BM=64,128. Repeatable."
    ),
]
Whole = Annotated[
    bool,
    typer.Option("--whole", help="Print configs whole, not only what differs from the default (JSON has them whole)."),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="PATH", help="Where to write.")]
Backward = Annotated[
    bool, typer.Option("--backward", help="What a training step runs: the call with what it keeps, and its gradients.")
]

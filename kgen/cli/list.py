"""kgen list: the operators and their families."""

from __future__ import annotations

from kgen.cli import options
from kgen.cli.output import print_json, print_table


def run(json: options.Json = False) -> None:
    """List the shipped operators and the families that serve them."""
    from kgen import ops
    from kgen.dsl.family import family_of

    rows = []
    for name, operator in ops.operators().items():
        graph = operator.graphs[0]
        dtypes = list(dict.fromkeys(",".join(dict.fromkeys(s.dtype.name for s in g.inputs)) for g in operator.graphs))
        said = " ".join((operator.__doc__ or "").split())
        rows.append((name, family_of(graph).name, "x".join(family_of(graph).dims(graph)), " ".join(dtypes), said))
    header = ("operator", "family", "shape", "dtypes", "computes")
    if json:
        families = {family_of(o.graphs[0]).name: family_of(o.graphs[0]) for o in ops.operators().values()}
        print_json(
            {
                "operators": [{**dict(zip(header, row)), "dtypes": row[3].split()} for row in rows],
                "aliases": ops.ALIASES,
                "families": {name: [s.__name__ for s in family.schedules] for name, family in families.items()},
            }
        )
    else:
        print_table(header, rows)

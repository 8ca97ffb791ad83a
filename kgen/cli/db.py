"""kgen db: the tuning database: what is in it, and tuned configs in and out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgen.cli import options
from kgen.cli.output import note, plain, print_json, print_table, trial_json, trial_time
from kgen.codegen.settings import shown_database

if TYPE_CHECKING:
    from kgen.tuning_db import BestRecord, GpuFacts, Store

app = typer.Typer(help="Look into the tuning database; export and import it.", rich_markup_mode=None)

OptionalOperator = Annotated[str | None, typer.Option("--operator", metavar="OP", help="Of this operator alone.")]
OptionalGpu = Annotated[
    str | None, typer.Option("--gpu", metavar="NAME", help="Of this GPU alone, as kgen db stats names it.")
]


def _stored(url: str | None, readonly: bool = True) -> Store:
    """The database, which must be there."""
    from kgen.cli import machine
    from kgen.dsl.errors import DatabaseError

    store = machine.existing_database(url, readonly)
    if store is None:
        raise DatabaseError(f"no tuning database yet at {shown_database(machine.database(url))}; kgen tune makes one")
    return store


def _gpus(store: Store, name: str | None) -> list[GpuFacts]:
    """The GPUs of that name in the database, all of them without one."""
    from kgen.dsl.errors import DatabaseError

    there = store.statistics().gpus
    found = [gpu for gpu in there if name in (None, gpu.name)]
    if name is not None and not found:
        known = ", ".join(dict.fromkeys(gpu.name for gpu in there)) or "none"
        raise DatabaseError(f"no GPU {name!r} in {store.where}; it has {known}")
    return found


def _checked_operator(store: Store, name: str | None) -> str | None:
    from kgen.dsl.errors import DatabaseError

    known = store.statistics().operators
    if name is not None and name not in known:
        raise DatabaseError(f"no operator {name!r} in {store.where}; it has {', '.join(known) or 'none'}")
    return name


@app.command()
def path(db: options.Database = None, json: options.Json = False) -> None:
    """Print where the database is, whether it is there yet or not. The password of a URL is left out."""
    from kgen.cli import machine
    from kgen.tuning_db import is_there

    where = machine.database(db)
    if json:
        print_json({"database": shown_database(where), "exists": is_there(where)})
    else:
        print(shown_database(where))


@app.command()
def stats(db: options.Database = None, json: options.Json = False) -> None:
    """Count what the database holds."""
    with _stored(db) as store:
        found = store.statistics()
    if json:
        print_json(plain(found))
        return
    print(f"{found.url} (revision {found.revision})")
    print(f"{found.problems} problems, {found.configs} configs, {found.best} best")
    counts = [(origin, status, f"{n}") for origin, kinds in found.trials.items() for status, n in kinds.items()]
    print_table(("origin", "status", "trials"), counts)
    print_table(("operator", "trials"), [(name, str(n)) for name, n in found.operators.items()])
    print_table(("GPU", "architecture", "SMs", "L2 MiB", "driver"),
                [(g.name, g.arch, str(g.sm_count), f"{g.l2_bytes / 2**20:g}", g.driver or "-") for g in found.gpus])  # fmt: skip


@app.command()
def best(
    operator: OptionalOperator = None, gpu: OptionalGpu = None, db: options.Database = None, json: options.Json = False
) -> None:
    """List the best configs known."""
    from kgen.tuning_db import MEASURED, MODELLED

    with _stored(db) as store:
        name = _checked_operator(store, operator)
        records = [
            r
            for g in _gpus(store, gpu)
            for origin in (MEASURED, MODELLED)
            for r in store.all_best(g, origin, name, space=None)
        ]
    if json:
        print_json([_best_json(record) for record in records])
    else:
        rows = [
            (r.gpu.name, r.problem.operator, r.problem.text, r.space or "all", trial_time(r.trial), r.trial.config.text)
            for r in records
        ]
        print_table(("GPU", "operator", "problem", "among", "time", "config"), rows)


@app.command()
def buckets(
    operator: OptionalOperator = None, gpu: OptionalGpu = None, db: options.Database = None, json: options.Json = False
) -> None:
    """List the buckets of ranges that were tuned, with their regret at the sizes that were timed."""
    from kgen.tuning_db import MEASURED, MODELLED, all_buckets

    with _stored(db) as store:
        name = _checked_operator(store, operator)
        gpus = _gpus(store, gpu)
        records = [r for g in gpus for origin in (MEASURED, MODELLED) for r in all_buckets(store, g, origin, name)]
    if json:
        facts = ("spans", "origin", "evidence")
        print_json(
            [
                {**{name: getattr(r, name) for name in facts}, "gpu": r.gpu.name, "operator": r.problem.operator,
                 "class": r.problem.form, "config": r.trial.config.text}
                for r in records
            ]
        )  # fmt: skip
        return
    rows = []
    for r in records:
        sizes = ",".join(f"{dim}={text}" for dim, text in r.spans.items())
        regret = f"{r.origin} {100 * r.evidence.get('regret', 0.0):.1f}%"
        rows.append((r.gpu.name, r.problem.operator, r.problem.form, sizes, regret, r.trial.config.text))
    print_table(("GPU", "operator", "class", "sizes", "regret", "config"), rows)


def _best_json(record: BestRecord) -> dict[str, Any]:
    problem = {"operator": record.problem.operator, "problem": record.problem.text, "family": record.problem.family}
    return {
        "gpu": plain(record.gpu),
        **problem,
        "space": record.space,
        "trial": trial_json(record.trial),
        "comparison": dict(record.comparison),
    }


@app.command()
def trials(
    op: options.Operator,
    shape: options.Shape = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    gpu: OptionalGpu = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """List the trials of an operator, or of one of its problems, oldest first."""
    from kgen.cli import problems
    from kgen.dsl.family import normalised
    from kgen.tuner.records import problem_key

    definition = problems.find_operator(op)
    digests = {graph.digest for graph in definition.definition.graphs}
    wanted = None
    if shape is not None:
        problem = problems.select_one(definition, shape, dtype, transposed, layout)
        wanted = problem_key(normalised(problem)).key
    with _stored(db) as store:
        keys = [key for key in store.problems() if key.digest in digests and wanted in (None, key.key)]
        found = [(g, key, trial) for g in _gpus(store, gpu) for key in keys for trial in store.trials(key, g)]
    if json:
        print_json([{"gpu": g.name, "problem": key.text, **trial_json(trial)} for g, key, trial in found])
    else:
        rows = [(str(t.id), g.name, key.text, t.status, trial_time(t), t.config.text) for g, key, t in found]
        print_table(("id", "GPU", "problem", "status", "time", "config"), rows)


@app.command()
def prune(
    operator: OptionalOperator = None,
    gpu: OptionalGpu = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """Delete the trials, and with them the best configs, of an operator, a GPU, or an operator on a GPU."""
    from kgen.dsl.errors import ArgumentError

    if operator is None and gpu is None:
        raise ArgumentError("nothing named to prune; expected --operator, --gpu or both")
    with _stored(db, readonly=not yes) as store:
        name = _checked_operator(store, operator)
        _gpus(store, gpu)
        if not yes:
            raise ArgumentError(f"prune deletes trials from {store.where} for good; give --yes to do it")
        removed = store.remove(gpu=gpu, operator=name)
        where = store.where
    if json:
        print_json({"database": where, "removed": removed})
    else:
        print(f"removed {removed} trials from {where}")


@app.command("export")
def export_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pack to write, such as h200.json.")],
    gpu: OptionalGpu = None,
    operator: OptionalOperator = None,
    modelled: Annotated[
        bool, typer.Option("--modelled", help="The modelled configs in place of the measured.")
    ] = False,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """Write the best configs of a GPU to a pack, a JSON file."""
    from kgen.dsl.errors import ArgumentError
    from kgen.tuning_db import MEASURED, MODELLED, export_pack

    origin = MODELLED if modelled else MEASURED
    with _stored(db) as store:
        name = _checked_operator(store, operator)
        named = _gpus(store, gpu)
        found = [g for g in named if store.all_best(g, origin, name)]
        if len({g.name for g in found}) > 1:
            raise ArgumentError(f"{store.where} has configs of {', '.join(g.name for g in found)}; name one by --gpu")
        if not named:
            raise ArgumentError(f"{store.where} has no configs to export; kgen tune finds some")
        chosen = (found or named)[-1]  # the newest driver and power limit
        count = export_pack(store, chosen, file, origin, name)
    if json:
        print_json({"file": str(file), "gpu": plain(chosen), "origin": origin, "configs": count})
    else:
        print(f"wrote {count} {origin} configs of {chosen.name} to {file}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pack that kgen db export wrote.")],
    gpu: options.Gpu = "auto",
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """Store the configs of a pack. They are verified on this machine before they are used.

    The pack's GPU must be of the same model as this one; without a GPU they are stored for the pack's.
    """
    from kgen.cli import machine
    from kgen.dsl.errors import DatabaseError
    from kgen.runtime.machine import find_gpu
    from kgen.tuner.records import gpu_facts
    from kgen.tuning_db import import_pack
    from kgen.tuning_db.packs import read_pack

    made_on = read_pack(file).gpu
    here = find_gpu(gpu)
    facts = gpu_facts(here.target) if here.found else made_on
    if not made_on.same_card(facts):
        raise DatabaseError(f"pack {file} is for {made_on.name}; --gpu means {facts.name}. Tune for it instead")
    with machine.open_database(db) as store:
        count = import_pack(store, facts, file)
        where = store.where
    if json:
        print_json({"database": where, "gpu": plain(facts), "new": count})
    else:
        print(f"stored {count} new configs for {facts.name} in {where}")


@app.command()
def check(db: options.Database = None, json: options.Json = False) -> None:
    """Look for damage; exit code 1 where there is some. Changes nothing."""
    with _stored(db) as store:
        found = store.check()
        where = store.where
    if json:
        print_json({"database": where, "ok": not found, "problems": found})
    elif found:
        print("\n".join(found))
        note("keep a copy of what is left (kgen db export), then begin anew with another --db")
    else:
        print(f"{where}: ok")
    if found:
        raise typer.Exit(1)

"""The tuning database that a command works with, and the config for the GPU that it names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kgen.codegen import settings
from kgen.dsl.errors import ConfigError, DatabaseError

if TYPE_CHECKING:
    from kgen.dsl.problem import Problem
    from kgen.dsl.restriction import Restriction
    from kgen.runtime.dispatch import Choice
    from kgen.runtime.machine import Machine
    from kgen.tuning_db import Store


def database(url: str | None) -> str:
    """The database meant: a path or a URL."""
    return settings.database() if url is None else url


def open_database(url: str | None) -> Store:
    """The database meant, made where there is none."""
    from kgen.tuning_db import open_store

    return open_store(database(url))


def existing_database(url: str | None, readonly: bool = True) -> Store | None:
    """The database meant, to read; None where the default one is not there yet. DatabaseError where a named one is not."""
    from kgen.tuning_db import is_there, open_store

    where = database(url)
    if is_there(where):
        return open_store(where, readonly)
    if url is None:
        return None
    raise DatabaseError(
        f"no tuning database {settings.shown_database(where)}; expected the path of one, or a SQLAlchemy URL "
        f"(kgen tune makes one)"
    )


@contextmanager
def reading(url: str | None) -> Iterator[Store | None]:
    """`existing_database`, closed at the end."""
    store = existing_database(url)
    try:
        yield store
    finally:
        if store is not None:
            store.close()


def choose(problem: Problem, machine: Machine, config: str | None, url: str | None, restriction: Restriction) -> Choice:
    """The config for a problem: the one given, if it is valid, else dispatch's choice, of the restriction's where it is one."""
    from kgen.cli.problems import find_config
    from kgen.dsl.family import normalised
    from kgen.runtime import dispatch

    if config is None:
        with reading(url) as store:
            return dispatch.choose(problem, machine.target, store, restriction)
    given = find_config(config)
    try:
        dispatch.check(given, normalised(problem), machine.target)
    except ConfigError as error:
        raise ConfigError(f"{error} (kgen explain tells more)") from error
    return dispatch.Choice(given, "given")

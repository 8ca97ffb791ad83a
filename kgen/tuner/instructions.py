"""Instructions: what is traced, as cpp/choose.cpp runs it."""

from __future__ import annotations

import ctypes
import functools
import json
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kgen.tuner.traced import OPS, NotTraced, Trace

# As in choose.cpp.
_FIELDS = 8
_CODES = {op: code for code, op in enumerate(OPS)}
_GUARD, _ALIVE = len(OPS), len(OPS) + 1
_REGISTER, _NUMBER, _COLUMN = range(3)
_STORED = {np.dtype(kind): place for place, kind in enumerate(("f8", "f4", "u2", "u1"))}
#: Bytes behind the last array, where C++ reads and uses nothing.
_ROOM = 64


#: As C++ has it: where it lies, and how far apart its values are.
_Column = np.dtype([("data", "u8"), ("row_stride", "i4"), ("last_stride", "i4"), ("stored", "i4")], align=True)


class _Program(ctypes.Structure):
    _fields_ = [
        ("columns", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("column_count", "registers", "count")),
        ("results", ctypes.c_int32 * (2 + _FIELDS)),
    ]


class Part(ctypes.Structure):
    """Rows of a table with one value each of the fields that sizes decide, and the programs over them."""

    _fields_ = [
        ("begins", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("groups", "last", "table", "variant", "variants", "field_count")),
        *((name, _Program) for name in ("valid", "plain", "whole")),
    ]


class Found(ctypes.Structure):
    """A row of a part with a combination of the `last` fields; `fields` are those that sizes decide."""

    _fields_ = [
        ("misfit", ctypes.c_double),
        ("seconds", ctypes.c_double),
        ("order", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("part", "row", "last")),
        ("fields", ctypes.c_double * _FIELDS),
    ]


class Instructions:
    """The instructions that give some results; of `questions` is asked on the way whether they hold for any row."""

    def __init__(self, trace: Trace, results: Sequence[int], questions: Sequence[int] = ()) -> None:
        self.results = list(results)
        if len(self.results) > 2 + _FIELDS:
            raise NotTraced(f"{len(self.results)} results")
        #: The columns that are read, by their nodes, numbered.
        self.columns: dict[int, int] = {}
        self._trace, self._questions = trace, set(questions)
        self._order: list[int] = []
        seen = set[int]()
        for result in (*questions, *results):
            self._visit(result, seen)
        self._registers: dict[int, int] = {}
        self._count = self._allocate()

    def _visit(self, place: int, seen: set[int]) -> None:
        """Puts what a value follows from into the order, each once, and then the value."""
        stack = [(place, False)]
        while stack:
            at, done = stack.pop()
            node = self._trace.nodes[at]
            if done:
                self._order.append(at)
            elif not node.op and not node.is_number:
                self.columns.setdefault(at, len(self.columns))
            elif at not in seen and not node.is_number:
                seen.add(at)
                stack.append((at, True))
                stack += ((arg, False) for arg in reversed(node.args))

    def _allocate(self) -> int:
        """Gives each value a register; one that is read for the last time leaves its own to the next. How many there are."""
        nodes = self._trace.nodes
        last = {arg: i for i, at in enumerate(self._order) for arg in nodes[at].args}
        last |= dict.fromkeys(self.results, len(self._order))
        free: list[int] = []
        count = 0
        for i, at in enumerate(self._order):
            if not free:
                free.append(count)
                count += 1
            self._registers[at] = free.pop()
            free += {self._registers[arg] for arg in nodes[at].args if last[arg] == i and arg in self._registers}
        return count

    def _operand(self, place: int) -> int:
        node = self._trace.nodes[place]
        if node.is_number:
            return place << 2 | _NUMBER
        return self._registers[place] << 2 | _REGISTER if node.op else self.columns[place] << 2 | _COLUMN

    def described(self, arrays: Arrays, columns: Sequence[int]) -> dict[str, Any]:
        """Them in JSON's terms; `columns` are the places in `arrays` of those that are read."""
        code = []
        for at in self._order:
            node = self._trace.nodes[at]
            args = [self._operand(arg) for arg in node.args]
            code.append((_CODES[node.op], self._registers[at], *args, *args[:1] * (3 - len(args))))
            if at in self._questions:
                code.append((_ALIVE, 0, self._operand(at), 0, 0))
        return {
            "code": arrays.add(np.array(code, dtype=np.int32).reshape(-1, 5)),
            "columns": columns,
            "registers": self._count,
            "results": [self._operand(result) for result in self.results],
        }


class Arrays:
    """The arrays of a recording, named by their places."""

    def __init__(self, found: Sequence[np.ndarray] = (), addresses: Sequence[int] = ()) -> None:
        self.found = list(found)
        #: Where each lies, as long as this lives; of those that were read.
        self.addresses = addresses
        self._places: dict[tuple[Any, ...], int] = {}

    def add(self, array: np.ndarray) -> int:
        """The place of one more; equal ones are one."""
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._places:
            self._places[key] = len(self.found)
            self.found.append(np.ascontiguousarray(array))
        return self._places[key]

    @functools.cached_property
    def columns(self) -> np.ndarray:
        """Of those that were read each as a column for C++; zeros for what is none. A class's programs name one a dozen times."""
        told = np.zeros(len(self.found), _Column)
        for place, (array, address) in enumerate(zip(self.found, self.addresses)):
            if array.ndim == 2 and array.dtype in _STORED:
                rows, last = array.shape
                told[place] = address, last if rows > 1 else 0, last > 1, _STORED[array.dtype]
        return told

    def written(self, about: Any) -> bytes:
        """All arrays, and what they are about in JSON's terms, as `read` takes them."""
        written = [_narrowest(array) for array in self.found]
        head = json.dumps([about, [(array.dtype.str, array.shape) for array in written]]).encode()
        whole = struct.pack("<Q", len(head)) + head
        return b"".join((whole, bytes(-len(whole) % 8), *(_padded(array.tobytes()) for array in written), bytes(_ROOM)))

    @classmethod
    def read(cls, data: bytes) -> tuple[Any, Arrays]:
        """What was `written`, each in the least bytes an element."""
        (length,) = struct.unpack_from("<Q", data)
        about, forms = json.loads(data[8 : 8 + length])
        start, at = np.frombuffer(data, np.uint8).ctypes.data, -(-(8 + length) // 8) * 8
        found, addresses = [], []
        for kind, shape in forms:
            found.append(np.frombuffer(data, kind, math.prod(shape), at).reshape(shape))
            addresses.append(start + at)
            at += -(-found[-1].nbytes // 8) * 8
        return about, cls(found, addresses)


def _narrowest(array: np.ndarray) -> np.ndarray:
    """The array in the least bytes an element that hold its values: most columns are small integers."""
    kinds = (kind for kind in ("u1", "u2", "f4") if array.dtype == np.float64 and array.size)
    with np.errstate(all="ignore"):
        return next((made for kind in kinds if np.array_equal(made := array.astype(kind), array)), array)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


class Rows:
    """The rows of a table in the order in which they are run: those whose validity is decided alike are a group.

    `valid` are the programs that decide it, `last` how many combinations of the `last` fields there are.
    """

    def __init__(self, trace: Trace, count: int, last: int, valid: Sequence[Instructions], arrays: Arrays) -> None:
        self._trace, self._count, self._last = trace, count, last
        deciding = [self._value(at) for at in dict.fromkeys(at for one in valid for at in one.columns)]
        deciding = [value[:, 0] for value in deciding if len(value) == count]
        self._places = np.lexsort(deciding) if deciding else np.arange(count)
        first = np.zeros(count, dtype=bool)
        first[0] = True
        for column in deciding:
            first[1:] |= np.diff(column[self._places]) != 0
        begins = np.append(np.flatnonzero(first), count).astype(np.int32)
        self._first = self._places[begins[:-1]]
        self.groups = len(self._first)
        #: Where among the arrays stands of each row its place in the table; the first row of each group, and behind the last.
        self.places, self.begins = arrays.add(self._places), arrays.add(begins)
        self._made: dict[tuple[int, bool], int] = {}

    def _value(self, node: int) -> np.ndarray:
        value = np.asarray(self._trace.nodes[node].value, dtype=np.float64)
        if value.ndim != 2 or value.shape[0] not in (1, self._count) or value.shape[1] not in (1, self._last):
            raise NotTraced(f"a column of {value.shape}")
        return value

    def columns(self, nodes: Iterable[int], of_groups: bool, arrays: Arrays) -> list[int]:
        """The places of columns among the arrays: of each row, or of each group's first."""
        found = []
        for node in nodes:
            place = self._made.get((node, of_groups))
            if place is None:
                value = self._value(node)
                if len(value) == self._count > 1:
                    value = value[self._first if of_groups else self._places]
                place = self._made[node, of_groups] = arrays.add(value)
            found.append(place)
        return found


def part(about: dict[str, Any], arrays: Arrays, kept: list[Any]) -> Part:
    """A part as C++ takes it; what it points to, but for the arrays, goes to `kept`."""
    made = Part(arrays.addresses[about["begins"]], arrays.addresses[about["places"]])
    for name in ("groups", "last", "table", "variant", "variants"):
        setattr(made, name, about[name])
    made.field_count = len(about["fields"])
    for name in ("valid", "plain", "whole"):
        program = about[name]
        columns = arrays.columns.take(np.array(program["columns"], dtype=np.intp))
        kept.append(columns)
        code = program["code"]
        one = _Program(
            columns.ctypes.data, arrays.addresses[code], len(columns), program["registers"], len(arrays.found[code])
        )
        one.results[: len(program["results"])] = program["results"]
        setattr(made, name, one)
    return made


def numbers(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """The instructions that give the numbers, guards among them; and room for all numbers, with those that no size changes."""
    code: list[tuple[int, ...]] = []
    given = np.zeros(len(trace.nodes))
    for place, node in enumerate(trace.nodes):
        if node.op and node.is_number:
            code.append((_CODES[node.op], place, *node.args, *(0,) * (3 - len(node.args))))
        elif node.is_number and node.value is not None:
            given[place] = node.value
        if place in trace.guards:
            code.append((_GUARD, 0, place, int(trace.guards[place]), 0))
    return np.array(code, dtype=np.int32).reshape(-1, 5), given

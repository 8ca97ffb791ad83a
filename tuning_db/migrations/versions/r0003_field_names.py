"""Fields of configs have CUDA's and CUTLASS's names: in stored configs with their keys, and in the spaces bests are of."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_FIELDS = {
    "swap": "swap_ab", "slabs": "epilogue_stages", "overlap": "pdl", "blocks": "blocks_per_sm", "waves": "blocks_per_sm",
}  # fmt: skip
_WORK = {"'stream'": "'stream_k'", "'split'": "'split_k'"}
#: The old fields of each schedule with one of them. A schedule derived from it has the same, and a name of its own.
_SCHEDULES = {
    "WgmmaGemm": "swap BM BN BK consumers pingpong blocks cluster work splits store slabs stages raster group overlap",
    "MmaGemm": "instruction BM BN BK WM WN copy stages swizzle pack splits store fragments raster group blocks",
    "SimtGemm": "BM BN BK TM TN copy transpose stages vector padding pack raster group blocks",
    "Gemv": "vectors pack rows unroll threads warps lanes splits staged blocks",
    "Nms": "chunk threads held blocks",
    "Rowwise": "keep row_threads threads cluster pack shift unroll algorithm columns blocks load store",
    "RowwiseCluster": "cluster threads pack unroll slots waves columns load store",
    "Elementwise": "pack items along threads waves load store",
    "Transpose": "tile_rows tile_columns load_bytes store_bytes shift pad threads order waves load store copy",
    "Reduce": "pack items threads waves load within finish",
    "ChannelStats": "pack items threads waves load within finish",
    "ColumnStats": "pack items threads lanes waves load",
    "ScatterAdd": "pack atomic lanes items rounds threads waves load",
    "ScatterBins": "replicas pack items threads waves",
    "ScatterRows": "pack lanes slots items atomic threads waves load",
}
#: Fields that a config without them does not name.
_ABSENT = {"copy", "within", "finish"}

_CONFIGS = sa.table(
    "configs", sa.column("id", sa.Integer), sa.column("version", sa.Integer),
    *(sa.column(name, sa.String) for name in ("key", "digest", "schedule", "text")),
)  # fmt: skip
_BEST = sa.table("best", sa.column("id", sa.Integer), sa.column("space", sa.String), sa.column("comparison", sa.JSON))


def upgrade() -> None:
    _rename({name: {f: _FIELDS.get(f, f) for f in fields.split()} for name, fields in _SCHEDULES.items()}, _WORK)


def downgrade() -> None:
    fields = {name: {_FIELDS.get(f, f): f for f in fields.split()} for name, fields in _SCHEDULES.items()}
    _rename(fields, {new: old for old, new in _WORK.items()})


def _rename(schedules: dict[str, dict[str, str]], work: Mapping[str, str]) -> None:
    """Gives fields, by what each schedule calls them now, other names, and values of `work` too."""
    connection = op.get_bind()
    kinds = {frozenset(fields.keys() - _ABSENT): fields for fields in schedules.values()}
    names = dict(schedules)

    def renamed(text: str) -> str:
        """The text with the configs, and the sets of configs, in it renamed."""
        return re.sub(
            r"(\w+)\(([^()]*)\)", lambda found: f"{found[1]}({_items(found[2], names.get(found[1], {}), work)})", text
        )

    for row in connection.execute(sa.select(_CONFIGS)).all():
        fields = kinds.get(frozenset(re.findall(r"(\w+)=", str(row.text))) - _ABSENT)
        if fields is None:
            continue
        names[row.schedule] = fields
        text = renamed(row.text)
        digest = _digest(text, row.version) if row.digest == _digest(row.text, row.version) else row.digest
        key = hashlib.sha256(json.dumps([row.schedule, row.version, text]).encode()).hexdigest()
        changed = sa.update(_CONFIGS).where(_CONFIGS.c.id == row.id).values(text=text, digest=digest, key=key)
        connection.execute(changed)
    for row in connection.execute(sa.select(_BEST)).all():
        values = {"space": _short(renamed(str(row.space))), "comparison": _texts(row.comparison, renamed)}
        if values != {"space": row.space, "comparison": row.comparison}:
            connection.execute(sa.update(_BEST).where(_BEST.c.id == row.id).values(**values))


def _items(given: str, fields: Mapping[str, str], work: Mapping[str, str]) -> str:
    """`field=value, ...` with other names."""

    def item(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name == "work" and name in fields:
            value = "|".join(work.get(one, one) for one in value.split("|"))
        return f"{fields.get(name, name)}={value}"

    return re.sub(r"(\w+)=([^,]*)", item, given)


def _texts(value: Any, renamed: Callable[[str], str]) -> Any:
    """JSON with all texts in it renamed."""
    if isinstance(value, dict):
        return {renamed(name): _texts(item, renamed) for name, item in value.items()}
    if isinstance(value, list):
        return [_texts(item, renamed) for item in value]
    return renamed(value) if isinstance(value, str) else value


def _digest(text: str, version: int) -> str:
    """What a config is called in every process."""
    return hashlib.sha256(f"{text} v{version}".encode()).hexdigest()[:16]


def _short(space: str) -> str:
    """A space as it is stored, with a digest where its text is long."""
    return space if len(space) <= 1000 else f"{space[:900]}... {hashlib.sha256(space.encode()).hexdigest()}"

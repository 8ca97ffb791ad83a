"""The first tables: GPUs, toolchains, problems, configs, trials and the best of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _reference(name: str, table: str, to: str) -> tuple[sa.Column[int], sa.ForeignKeyConstraint]:
    column: sa.Column[int] = sa.Column(name, sa.Integer, nullable=False)
    return column, sa.ForeignKeyConstraint([name], [f"{to}.id"], name=f"fk_{table}_{name}")


def _keyed(name: str, *columns: sa.Column[object]) -> None:
    op.create_table(
        name,
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
        sa.UniqueConstraint("key", name=f"uq_{name}_key"),
    )


def upgrade() -> None:
    _keyed(
        "gpus",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("arch", sa.Text, nullable=False),
        sa.Column("sm_count", sa.Integer, nullable=False),
        sa.Column("l2_bytes", sa.BigInteger, nullable=False),
        sa.Column("power_limit", sa.Integer),
        sa.Column("driver", sa.Text),
    )
    _keyed(
        "toolchains",
        sa.Column("nvrtc", sa.Text, nullable=False),
        sa.Column("kgen", sa.Text, nullable=False),
        sa.Column("schema", sa.Text, nullable=False),
    )
    _keyed(
        "problems",
        sa.Column("operator", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("family", sa.Text, nullable=False),
        sa.Column("sizes", sa.JSON, nullable=False),
    )
    op.create_index("ix_problems_digest", "problems", ["digest"])
    _keyed(
        "configs",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("schedule", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "trials",
        sa.Column("id", sa.Integer, nullable=False),
        *_reference("problem_id", "trials", "problems"),
        *_reference("config_id", "trials", "configs"),
        *_reference("gpu_id", "trials", "gpus"),
        *_reference("toolchain_id", "trials", "toolchains"),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("source_digest", sa.Text, nullable=False),
        sa.Column("seconds", sa.Double),
        sa.Column("lower_seconds", sa.Double),
        sa.Column("upper_seconds", sa.Double),
        sa.Column("samples", sa.Integer),
        sa.Column("modelled_seconds", sa.Double),
        sa.Column("registers", sa.Integer),
        sa.Column("spills", sa.Integer),
        sa.Column("shared", sa.Integer),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("clocks", sa.JSON, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.Column("verified", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.CheckConstraint(
            "status IN ('ok', 'compile_error', 'rejected', 'wrong', 'crashed', 'timeout')",
            name=op.f("ck_trials_status"),
        ),
        sa.CheckConstraint(
            "(origin = 'measured' AND modelled_seconds IS NULL AND ((status = 'ok') = (seconds IS NOT NULL))) OR "
            "(origin = 'modelled' AND seconds IS NULL AND lower_seconds IS NULL AND upper_seconds IS NULL "
            "AND samples IS NULL AND ((status = 'ok') = (modelled_seconds IS NOT NULL)))",
            name=op.f("ck_trials_origin"),
        ),
    )
    op.create_index("ix_trials_problem_id_gpu_id", "trials", ["problem_id", "gpu_id"])
    op.create_table(
        "best",
        sa.Column("id", sa.Integer, nullable=False),
        *_reference("problem_id", "best", "problems"),
        *_reference("gpu_id", "best", "gpus"),
        *_reference("toolchain_id", "best", "toolchains"),
        sa.Column("origin", sa.String(16), nullable=False),
        *_reference("trial_id", "best", "trials"),
        sa.Column("comparison", sa.JSON, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_best"),
        sa.UniqueConstraint(
            "problem_id", "gpu_id", "toolchain_id", "origin", name="uq_best_problem_id_gpu_id_toolchain_id_origin"
        ),
    )
    op.create_index("ix_best_trial_id", "best", ["trial_id"])


def downgrade() -> None:
    for table in ("best", "trials", "configs", "problems", "toolchains", "gpus"):
        op.drop_table(table)

"""Problems whose tuning was put off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deferred",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("problem_id", sa.Integer, nullable=False),
        sa.Column("gpu_id", sa.Integer, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deferred"),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name="fk_deferred_problem_id"),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpus.id"], name="fk_deferred_gpu_id"),
        sa.UniqueConstraint("problem_id", "gpu_id", name="uq_deferred_problem_id_gpu_id"),
    )


def downgrade() -> None:
    op.drop_table("deferred")

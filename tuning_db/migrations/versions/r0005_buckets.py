"""Buckets: configs for ranges of sizes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "buckets",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("space", sa.String(1000), nullable=False),
        sa.Column("spans", sa.JSON, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_buckets"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_buckets_trial_id"),
    )
    op.create_index("ix_buckets_trial_id", "buckets", ["trial_id"])


def downgrade() -> None:
    op.drop_index("ix_buckets_trial_id", "buckets")
    op.drop_table("buckets")

"""The best of a problem is that of a space which was searched: of all configs (""), or of some that the user named."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_PLACE = ("problem_id", "gpu_id", "toolchain_id", "origin")
_OLD, _NEW = "uq_best_problem_id_gpu_id_toolchain_id_origin", "uq_best_problem_id_gpu_id_toolchain_id_origin_space"


def upgrade() -> None:
    with op.batch_alter_table("best") as table:
        table.add_column(sa.Column("space", sa.String(1000), nullable=False, server_default=""))
        table.drop_constraint(_OLD, type_="unique")
        table.create_unique_constraint(_NEW, [*_PLACE, "space"])


def downgrade() -> None:
    op.execute("DELETE FROM best WHERE space <> ''")
    with op.batch_alter_table("best") as table:
        table.drop_constraint(_NEW, type_="unique")
        table.create_unique_constraint(_OLD, list(_PLACE))
        table.drop_column("space")

"""Runs the migrations on the connection, and inside the transaction, that `kgen.tuning_db.engine` hands over."""

from __future__ import annotations

from alembic import context

from kgen.tuning_db.engine import VERSION_TABLE
from kgen.tuning_db.models import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()

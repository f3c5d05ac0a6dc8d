"""The store: one SQL text for SQLite and PostgreSQL, drivers that know no task, a writer with group commit."""

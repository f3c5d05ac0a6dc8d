"""Migrations: `NNNN_name.<dialect>.sql`, in order, expand only, each with its checksum in the `migrations` table."""

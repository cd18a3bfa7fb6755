"""The DuckDB file: schema, migrations, named queries, traces in and out."""

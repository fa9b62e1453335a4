"""Reading tables: rows, times, certificates."""

"""The ``headwater`` command: one module per group of commands; typer and rich stay in here."""

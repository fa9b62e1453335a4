"""The ``headwater`` command, one module per group; only this package imports typer and rich."""

"""Who may do what: decisions without I/O."""

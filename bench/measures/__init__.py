"""What is measured, one module each; every one has ``run(session)``."""

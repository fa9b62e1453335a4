"""The measures, one module each; every module has ``run(session)``."""

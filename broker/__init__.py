"""The replicated log: its values, codecs, cores and storage, and the daemon that runs them.

Importing this package costs nothing and pulls in no third-party module: Spark workers do it for
every task. Nothing is re-exported here; import the module that defines the name.
"""

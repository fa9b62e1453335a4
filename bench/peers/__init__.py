"""The peers: JetStream and Kafka, as servers, clusters, clients and tools.

``programs/`` has what is built for them on first use: a client on nats.go, the ``nats`` command,
and the jars of Kafka and of Spark's Kafka source, each at one version.
"""

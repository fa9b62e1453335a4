"""The Spark data source ``headwater``: offset ranges of a stream's tail, over Arrow Flight."""

"""The Spark data source ``headwater``: offset ranges of streams, from both tiers."""

"""The unified read in Spark, and SQL over streams."""

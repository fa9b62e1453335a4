"""Known mistakes of replication, elections, tiering and shells, planted into the product's code."""

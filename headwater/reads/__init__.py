"""Reading whole histories without Spark: cuts, moments, keys, verification."""

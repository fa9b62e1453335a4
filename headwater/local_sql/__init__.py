"""SQL over streams inside this process: Spark's answers, for what one machine can hold."""

"""Writing a DataFrame, or a streaming query, into a stream: ``format("headwater")``."""

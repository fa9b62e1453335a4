"""Every file and folder of a broker and of its tables, damaged in every way."""

"""The tables made from figures: their rows and bars as data, and the rendering."""

"""Files of graphs that other programs read."""

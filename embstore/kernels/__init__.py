"""Compiled loops: rows out of memory maps, exact search, sums of cosines."""

"""Whole studies of the literature, from a corpus and a model to their tables and figures."""

"""Probes: classifiers on frozen vectors, trained many at a time."""

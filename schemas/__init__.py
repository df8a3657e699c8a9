"""JSON Schemas of everything that embstore writes or reads as JSON."""

"""The same extraction and queries on many processes or machines."""

"""The attention of models over corpora. Importing it makes all statistics known, in the order of the results."""

from embstore.analysis.attention import shares, syntax

__all__ = ["shares", "syntax"]

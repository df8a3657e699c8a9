"""Models that turn sentences into vectors of words, and fine-tuning; torch and transformers load with the first use."""

from embstore.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

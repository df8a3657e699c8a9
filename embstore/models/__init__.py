"""Models that turn sentences into vectors of words, and fine-tuning; torch and transformers load with the first use."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

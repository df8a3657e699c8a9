"""How fast embstore is on this machine, compared with the best installed rival and with the limits of the machine."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

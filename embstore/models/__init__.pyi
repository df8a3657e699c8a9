from .checkpoint import save_untrained as save_untrained
from .encoder import Encoder as Encoder
from .generating import generate as generate
from .loading import bag_encoder as bag_encoder
from .loading import load_encoder as load_encoder
from .loading import model_kind as model_kind
from .loading import vector_encoder as vector_encoder
from .origin import find_model as find_model

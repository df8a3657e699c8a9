from . import analysis as analysis
from . import corpus as corpus
from . import extraction as extraction
from . import models as models
from . import plot as plot
from . import probes as probes
from . import store as store
from . import vectors as vectors
from .analysis.attention.measure import attention as attention
from .analysis.geometry.measure import geometry as geometry
from .analysis.neighbors.find import neighbors as neighbors
from .analysis.neighbors.senses import senses as senses
from .analysis.scan import reduce as reduce
from .analysis.static import static_vectors as static_vectors
from .config import config as config
from .corpus import open_corpus as open_corpus
from .database.query import sql as sql
from .extraction.extract import extract as extract
from .extraction.options import ExtractionOptions as ExtractionOptions
from .extraction.plan import plan as plan
from .models import load_encoder as load_encoder
from .probes import ClassProbe as ClassProbe
from .store import Store as Store
from .store import export as export
from .store import verify as verify
from .store.opening import open as open

__version__: str

from .answers import Arrays as Arrays
from .queries.registry import CancelledQueryError as CancelledQueryError
from .queries.registry import NotFoundError as NotFoundError
from .queries.registry import answer as answer
from .serving import serve as serve
from .static import write_static as write_static
from .stores import Explored as Explored
from .stores import explored as explored

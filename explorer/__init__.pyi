from .notebook import explore as explore
from .queries.registry import answer as answer
from .reports.report import report as report
from .serving import serve as serve
from .stores import explored as explored

from .measure import Change as Change
from .measure import measure_change as measure_change
from .testing import ChangeTests as ChangeTests

from .gold import ChangeGold as ChangeGold
from .gold import evaluate_change as evaluate_change
from .gold import read_change_gold as read_change_gold
from .measure import Change as Change
from .measure import measure_change as measure_change
from .periods import ChangeSeries as ChangeSeries
from .periods import measure_periods as measure_periods
from .testing import ChangeTests as ChangeTests

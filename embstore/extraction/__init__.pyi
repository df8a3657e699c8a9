from .append import options_of as options_of
from .extract import extract_windows as extract_windows
from .plan import Plan as Plan
from .window_plan import WindowPlan as WindowPlan
from .window_plan import plan_windows as plan_windows
from .window_plan import store_path as store_path

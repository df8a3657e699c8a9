from .append import options_of as options_of
from .plan import Plan as Plan

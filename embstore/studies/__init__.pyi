from .tenney2019.study import tenney2019 as tenney2019
from .zhao2020.study import zhao2020 as zhao2020

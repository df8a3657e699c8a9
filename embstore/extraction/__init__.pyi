from .bench import bench_extract as bench_extract
from .pipeline import Progress as Progress
from .pipeline import Timings as Timings
from .sweep import extract_windows as extract_windows
from .sweep import plan_windows as plan_windows
from .sweep import store_path as store_path

from .measure import Row as Row
from .run import BenchReport as BenchReport
from .run import bench_all as bench_all

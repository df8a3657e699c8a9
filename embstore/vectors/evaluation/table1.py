"""Results in the layout of Table 1 of Ethayarajh 2019: a row for each system, a column for each benchmark."""

from __future__ import annotations

import re
from typing import Literal

import polars as pl

# The columns in the paper's order, and patterns of the names of the benchmarks in them.
TABLE1_COLUMNS = {
    "SimLex999": r"simlex",
    "MEN": r"\bmen\b",
    "WS353": r"\bws-?353(?!-(sim|rel))",
    "RW": r"\brw\b",
    "Google": r"google",
    "MSR": r"\bmsr\b",
    "SemEval2012(2)": r"semeval-?2012",
    "BLESS": r"\bbless\b",
    "AP": r"\bap\b",
}
MAIN_METRICS = {
    "similarity": "spearman",
    "analogy": "3CosAdd",
    "relations": "spearman",
    "categorisation": "purity",
}

PAPER_CITATION = (
    "Kawin Ethayarajh. 2019. How Contextual are Contextualized Word Representations? Comparing the Geometry of BERT, "
    "ELMo, and GPT-2 Embeddings. EMNLP-IJCNLP 2019, Table 1."
)
# The numbers as printed there, in the order of TABLE1_COLUMNS.
PAPER_TABLE_1: dict[str, tuple[float, ...]] = {
    "GloVe": (0.194, 0.216, 0.339, 0.127, 0.189, 0.312, 0.097, 0.390, 0.308),
    "FastText": (0.239, 0.239, 0.432, 0.176, 0.203, 0.289, 0.104, 0.375, 0.291),
    "ELMo, Layer 1": (0.276, 0.167, 0.317, 0.148, 0.170, 0.326, 0.114, 0.410, 0.308),
    "ELMo, Layer 2": (0.215, 0.151, 0.272, 0.133, 0.130, 0.268, 0.132, 0.395, 0.318),
    "BERT, Layer 1": (0.315, 0.200, 0.394, 0.208, 0.236, 0.389, 0.166, 0.365, 0.321),
    "BERT, Layer 2": (0.320, 0.166, 0.383, 0.188, 0.230, 0.385, 0.149, 0.365, 0.321),
    "BERT, Layer 11": (0.221, 0.076, 0.319, 0.135, 0.175, 0.290, 0.149, 0.370, 0.289),
    "BERT, Layer 12": (0.233, 0.082, 0.325, 0.144, 0.184, 0.307, 0.144, 0.360, 0.294),
    "GPT-2, Layer 1": (0.174, 0.012, 0.176, 0.183, 0.052, 0.081, 0.033, 0.220, 0.184),
    "GPT-2, Layer 2": (0.135, 0.036, 0.171, 0.180, 0.045, 0.062, 0.021, 0.245, 0.184),
    "GPT-2, Layer 11": (0.126, 0.034, 0.165, 0.182, 0.031, 0.038, 0.045, 0.270, 0.189),
    "GPT-2, Layer 12": (0.140, -0.009, 0.113, 0.163, 0.020, 0.021, 0.014, 0.225, 0.172),
}


def table1(frame: pl.DataFrame, *, of: Literal["value", "count", "coverage"] = "value") -> pl.DataFrame:
    """Arrange the frame of `evaluate` as the paper's Table 1: one row a system, one column a benchmark.

    The paper's benchmarks come first, in its order and under its names, then the others. The scores are Spearman's
    rho (similarity, relations), the accuracy of 3CosAdd (analogies) and purity (categorisation).
    """
    main = frame.filter(
        pl.any_horizontal(
            (pl.col("task") == task) & (pl.col("metric") == metric) for task, metric in MAIN_METRICS.items()
        )
    )
    benchmarks = main["benchmark"].unique(maintain_order=True).to_list()
    column_of: dict[str, str] = {}
    for column, pattern in TABLE1_COLUMNS.items():
        matching = [name for name in benchmarks if name not in column_of and re.search(pattern, name, re.IGNORECASE)]
        if matching:
            column_of[matching[0]] = column
    column_of |= {name: name for name in benchmarks if name not in column_of}
    wide = main.with_columns(pl.col("benchmark").replace(column_of)).pivot("benchmark", index="system", values=of)
    return wide.select("system", *column_of.values())


def paper_table1() -> pl.DataFrame:
    """Return Table 1 as printed in the paper (see PAPER_CITATION), in the layout of `table1`."""
    rows = [(system, *values) for system, values in PAPER_TABLE_1.items()]
    return pl.DataFrame(rows, schema=["system", *TABLE1_COLUMNS], orient="row")

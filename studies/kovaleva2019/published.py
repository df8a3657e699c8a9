"""What Kovaleva et al. 2019 and others state in their texts; numbers of figures alone are left out.

The sentences of Kovaleva et al. and of Michel et al. are as later texts quote them, not read in the papers themselves.
"""

from __future__ import annotations

# Kovaleva et al. 2019, section 4.6 (page 8), BERT-base fine-tuned on GLUE: absolute changes of the score.
DISABLING = (
    ("largest gain by a single head", "STS-B, the least of all tasks", "+0.001"),
    ("largest gain by a single head", "MRPC, the most of all tasks", "+0.012"),
    ("without the first layer's heads", "RTE", "+0.032"),
    ("without a layer's heads", "QNLI and MNLI, the largest drop", "-0.002"),
)
# Rogers et al. 2020, sections 5.1 and 6.3, on Kovaleva et al. 2019 (BERT-base fine-tuned on GLUE).
HETEROGENEOUS = "less than half of the maps"
CHANGED = "the last two layers"
# Michel et al. 2019, BERT-base on MNLI.
PRUNED = "up to 40 % of the heads without a noticeable effect (BERT-base, MNLI)"
CITATION = """@inproceedings{kovaleva-etal-2019-revealing,
  title = {Revealing the Dark Secrets of {BERT}},
  author = {Kovaleva, Olga and Romanov, Alexey and Rogers, Anna and Rumshisky, Anna},
  booktitle = {Proceedings of EMNLP-IJCNLP 2019},
  year = {2019}, eprint = {1908.08593}
}
@inproceedings{michel-etal-2019-sixteen,
  title = {Are Sixteen Heads Really Better than One?},
  author = {Michel, Paul and Levy, Omer and Neubig, Graham},
  booktitle = {Advances in Neural Information Processing Systems 32},
  year = {2019}, eprint = {1905.10650}
}
"""

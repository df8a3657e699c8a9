"""What Hewitt & Manning 2019 found by the rank of the probe."""

from __future__ import annotations

# UUAS and DSpr by maximum rank, of BERTBASE7 (layer 8 as embstore counts) on the Penn Treebank with Stanford
# Dependencies: the numbers of the paper's figure of ranks, as the first author's script has them
# (github.com/john-hewitt/control-tasks, scripts/codalab/make_emnlp19_pos_graph.py, commit 29a0682).
BY_RANK = {
    1: (0.266, 0.55),
    2: (0.389, 0.63),
    4: (0.509, 0.71),
    8: (0.659, 0.77),
    16: (0.742, 0.81),
    32: (0.780, 0.83),
    64: (0.795, 0.84),
    128: (0.799, 0.85),
    256: (0.797, 0.85),
    512: (0.797, 0.85),
}
CITATION = """@inproceedings{hewitt-manning-2019-structural,
  title = {A Structural Probe for Finding Syntax in Word Representations},
  author = {Hewitt, John and Manning, Christopher D.},
  booktitle = {Proceedings of NAACL-HLT 2019},
  year = {2019}, pages = {4129--4138}, doi = {10.18653/v1/N19-1419}
}
"""

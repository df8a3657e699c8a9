"""What Hewitt & Manning 2019 print in Table 1."""

from __future__ import annotations

# Hewitt & Manning 2019, Table 1: UUAS, DSpr, root accuracy and NSpr on test of the Penn Treebank with Stanford
# Dependencies. The names have the paper's layers; layer k of BERT there is our layer k + 1.
SCORES = {
    "Linear": (0.489, 0.58, 0.029, 0.27),
    "ELMo0": (0.268, 0.44, 0.543, 0.56),
    "Decay0": (0.517, 0.61, 0.543, 0.56),
    "Proj0": (0.598, 0.73, 0.644, 0.75),
    "ELMo1": (0.770, 0.83, 0.865, 0.87),
    "BERTBASE7": (0.798, 0.85, 0.880, 0.87),
    "BERTLARGE15": (0.825, 0.86, 0.894, 0.88),
    "BERTLARGE16": (0.817, 0.87, 0.901, 0.89),
}
CITATION = """@inproceedings{hewitt-manning-2019-structural,
  title = {A Structural Probe for Finding Syntax in Word Representations},
  author = {Hewitt, John and Manning, Christopher D.},
  booktitle = {Proceedings of NAACL-HLT 2019},
  year = {2019}, pages = {4129--4138}, doi = {10.18653/v1/N19-1419}
}
"""

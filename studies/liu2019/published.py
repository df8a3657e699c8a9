"""What Rogers et al. 2020 state of Liu et al. 2019 and of Lin et al. 2019 in section 5.2, and what to cite.

The numbers of both papers are in figures and tables that are not at hand, and are left out. The probes, their training
and the tasks are those of the authors' code: nelson-liu/contextual-repr-analysis (commit 1ba69cf) and
yongjie-lin/bert-opensesame (commit 4b4d369).
"""

from __future__ import annotations

# Our findings are compared with these.
MIDDLE = "Middle layers of transformers perform best and are the most transferable (Liu et al.; BERT and others)"
POS = "Parts of speech are read best from middle layers (Liu et al.; BERT base and large)"
ORDER = "Knowledge of linear word order decreases, around layer 4 of BERT-base's 12 (Lin et al.)"
HIERARCHY = "Knowledge of the hierarchy of sentences (main auxiliary, subject) increases with it (Lin et al.)"

CITATION = """@inproceedings{liu-etal-2019-linguistic,
  title = {Linguistic Knowledge and Transferability of Contextual Representations},
  author = {Liu, Nelson F. and Gardner, Matt and Belinkov, Yonatan and Peters, Matthew E. and Smith, Noah A.},
  booktitle = {Proceedings of NAACL-HLT 2019},
  year = {2019}, pages = {1073--1094}, doi = {10.18653/v1/N19-1112}
}
@inproceedings{lin-etal-2019-open,
  title = {Open Sesame: Getting Inside {BERT}'s Linguistic Knowledge},
  author = {Lin, Yongjie and Tan, Yi Chern and Frank, Robert},
  booktitle = {Proceedings of the 2019 ACL Workshop BlackboxNLP: Analyzing and Interpreting Neural Networks for NLP},
  year = {2019}, doi = {10.18653/v1/W19-4825}
}
@article{rogers-etal-2020-primer,
  title = {A Primer in {BERT}ology: What We Know About How {BERT} Works},
  author = {Rogers, Anna and Kovaleva, Olga and Rumshisky, Anna},
  journal = {Transactions of the Association for Computational Linguistics},
  year = {2020}, doi = {10.1162/tacl_a_00349}
}
"""

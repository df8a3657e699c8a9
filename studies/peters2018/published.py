"""The paper of Peters et al. 2018, of which the abstract alone was at hand: it states an order and no number."""

CLAIM = "longer range semantics such as coreference at the upper layers"
CITATION = """@inproceedings{peters-etal-2018-dissecting,
  title = {Dissecting Contextual Word Embeddings: Architecture and Representation},
  author = {Peters, Matthew E. and Neumann, Mark and Zettlemoyer, Luke and Yih, Wen-tau},
  booktitle = {Proceedings of EMNLP 2018},
  year = {2018}, pages = {1499--1509}, doi = {10.18653/v1/D18-1179}
}
"""

"""What the paper states of its data, Wiki-PSE: Tables 1, 2 and 8."""

from __future__ import annotations

# Table 1: the nearest neighbors of "suit" in GloVe and in the wordpieces of BERT-base-uncased.
NEIGHBORS = {
    ("suit", "GloVe"): ("suits", "lawsuit", "filed", "lawsuits", "sued", "complaint", "jacket"),
    ("suit", "BERT"): ("suits", "suited", "lawsuit", "##suit", "lawsuits", "slacks", "47th"),
}

# Table 2: words, word-class pairs and contexts.
COUNTS = {
    "train": (35_399, 62_184, 2_178_895),
    "dev": (8_850, 15_437, 542_938),
    "test": (44_250, 77_706, 2_722_893),
}

# Table 8: pairs and contexts of train, of dev and of test, by class.
CLASS_COUNTS = {
    "location": (13_474, 618_932, 3_408, 152_470, 16_859, 776_848),
    "person": (15_423, 617_270, 3_744, 151_005, 19_212, 765_655),
    "organization": (9_556, 332_063, 2_496, 88_682, 11_915, 411_716),
    "art": (7_428, 201_529, 1_854, 52_295, 9_192, 247_481),
    "event": (3_515, 87_735, 900, 21_566, 4_404, 108_963),
    "broadcast-program": (2_287, 67_261, 530, 15_062, 2_828, 84_343),
    "title": (1_429, 43_041, 311, 9_646, 1_792, 56_333),
    "product": (3_121, 49_076, 766, 13_438, 3_808, 61_585),
    "living-thing": (1_302, 35_595, 320, 9_035, 1_702, 46_040),
    "people-ethnicity": (754, 27_573, 181, 6_699, 951, 35_332),
    "language": (671, 14_842, 145, 3_147, 824, 20_308),
    "broadcast-network": (325, 12_392, 80, 3_036, 362, 13_006),
    "time": (157, 7_765, 39, 1_997, 192, 9_984),
    "religion-religion": (192, 6_461, 45, 1_760, 265, 9_719),
    "award": (251, 7_589, 61, 1_776, 301, 8_877),
    "internet-website": (88, 2_466, 21, 645, 141, 3_851),
    "god": (246, 7_306, 52, 1_998, 340, 11_810),
    "education-educational-degree": (97, 3_282, 24, 901, 142, 4_833),
    "food": (381, 7_805, 112, 2_003, 480, 9_514),
    "computer-programming-language": (105, 2_739, 29, 402, 123, 2_677),
    "metropolitan-transit-transit-line": (285, 5_603, 76, 1_259, 382, 6_948),
    "transit": (135, 3_781, 26, 628, 186, 4_305),
    "finance-currency": (127, 3_107, 30, 548, 166, 3_388),
    "disease": (163, 2_619, 33, 381, 260, 4_385),
    "chemistry": (170, 3_350, 43, 1_254, 195, 3_858),
    "body-part": (135, 1_901, 31, 415, 156, 2_591),
    "finance-stock-exchange": (27, 617, 3, 5, 51, 795),
    "law": (23, 474, 6, 54, 27, 535),
    "medicine-medical-treatment": (77, 886, 7, 124, 106, 1_803),
    "medicine-drug": (50, 1_023, 7, 54, 72, 1_157),
    "broadcast-tv-channel": (45, 564, 14, 210, 74, 1_264),
    "medicine-symptom": (55, 752, 15, 97, 72, 1_172),
    "biology": (49, 485, 15, 118, 63, 911),
    "visual-art-color": (41, 1_011, 13, 228, 63, 906),
}

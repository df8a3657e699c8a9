"""Static word vectors held against word benchmarks: similarity, analogies, relations, categories."""

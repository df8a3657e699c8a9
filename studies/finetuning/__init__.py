"""Fine-tuning of transformers on words (pos, ner) and on sentences (classify, paraphrase)."""

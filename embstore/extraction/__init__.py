"""From sentences to committed partitions: plan, windows, the pipeline."""

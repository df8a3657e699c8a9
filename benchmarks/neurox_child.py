"""NeuroX in a process of its own: `neurox_child.py MODEL SENTENCES.txt OUTPUT.hdf5`, JSON of seconds on stdout.

Loading the model is not counted, and what NeuroX prints about every sentence goes nowhere.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from contextlib import redirect_stdout
from typing import Any


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


def main() -> None:
    model, sentences, output = sys.argv[1:]
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    from neurox.data.extraction import transformers_extractor as neurox

    load = neurox.get_model_and_tokenizer
    loaded_at = processor_then = 0.0

    def get_model_and_tokenizer(*arguments: Any, **options: Any) -> Any:
        nonlocal loaded_at, processor_then
        loaded = load(*arguments, **options)
        loaded_at, processor_then = time.perf_counter(), time.process_time()
        return loaded

    neurox.get_model_and_tokenizer = get_model_and_tokenizer
    with redirect_stdout(_Nowhere()):
        neurox.extract_representations(model, sentences, output, aggregation="average", output_type="hdf5")
    spent = {"seconds": time.perf_counter() - loaded_at, "processor_s": time.process_time() - processor_then}
    print(json.dumps(spent))


if __name__ == "__main__":
    main()

"""Fine-tuning a real model on real data, for a short time."""

from __future__ import annotations

from pathlib import Path

import pytest

from embstore_studies.finetuning.finetune import finetune
from embstore_studies.finetuning.settings import FineTuneSettings


@pytest.mark.slow
def test_minilm_learns_parts_of_speech(minilm: Path, data: Path, tmp_path: Path) -> None:
    dev = tmp_path / "dev.conllu"
    dev.write_text("\n\n".join((data / "ud-ewt" / "en_ewt-ud-dev.conllu").read_text().split("\n\n")[:100]) + "\n\n")
    made = finetune(
        {"folder": data / "ud-ewt", "dev": dev, "test": dev},
        task="pos",
        model=minilm,
        out=tmp_path / "out",
        settings=FineTuneSettings(n_examples=300, epochs=2, batch_size=16, learning_rate=5e-4),
        device="cpu",
    )
    assert made.record["epochs"][-1]["dev"]["accuracy"] > 0.8

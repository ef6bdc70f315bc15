"""Loading needs the memory of the weights once: none next to the files' in the stored type, and no second copy else."""

import pytest
from loading import measured, write_checkpoint


@pytest.mark.long
def test_loading_needs_no_second_copy(tmp_path):
    parameters = write_checkpoint(tmp_path, hidden=512, inner=2048, layers=8, vocabulary=16000, heads=8)

    def most(dtype: str, *words: str) -> float:
        """The most memory of loading, over that of the weights in this type."""
        return measured(tmp_path, dtype, "load", *words)["load"].anonymous / (parameters * (2 if "16" in dtype else 4))

    assert most("bfloat16") < 0.1
    assert 0.9 < most("float32") < 1.1
    assert most("float32", "copy") > 1.9  # a copy would be seen

"""How long a run will take: from its warm-up, then from what its documents took."""

from types import SimpleNamespace

import pytest

from specbench.measure import work as module
from specbench.measure.work import Forecast


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    time = [0.0]
    monkeypatch.setattr(module, "now", lambda: time[0])
    return time


def work(lengths: list[tuple[int, int]], shared: int = 0) -> SimpleNamespace:
    """Documents by the length of their prompts and of their longest answers, of one task."""
    requests = [SimpleNamespace(task="t", max_new_tokens=most) for _, most in lengths]
    prompts = [[1] * length for length, _ in lengths]
    return SimpleNamespace(requests=requests, prompts=prompts, cached=lambda place: shared, span=range(len(lengths)))


def sample(method: str, prompt: int, prefill: float, tokens: int, decode: float) -> dict:
    return {
        "method": method,
        "task": "t",
        "prompt_tokens": prompt,
        "prefill_seconds": prefill,
        "tokens": [1] * tokens,
        "decode_seconds": decode,
    }


# 0.01 s for a token of a prompt by each method; 0.1 s for a new token by one, 0.05 s by the other.
WARM = [sample("vanilla", 100, 1.0, 21, 2.0), sample("pld", 100, 1.0, 21, 1.0)]


def test_a_run_is_foreseen_by_prompts_and_longest_answers(clock, capsys):
    """Two documents: 100 and 200 tokens to read, 40 and 80 to write: 2 + 6 and 4 + 12 seconds."""
    forecast = Forecast(work([(100, 40), (200, 80)]), 0)
    forecast.begin(WARM)
    assert "at most about 24 s for 2 documents by 2 methods" in capsys.readouterr().out
    assert forecast.left(0) is None
    clock[0] = 4.0  # half of what was foreseen
    assert forecast.left(1) == pytest.approx(8.0)
    clock[0] = 12.0
    assert forecast.left(2) == 0.0


def test_a_part_of_a_document_counts_by_its_share(clock):
    forecast = Forecast(work([(100, 40), (200, 80)]), 0)
    forecast.begin(WARM)
    clock[0] = 16.0  # 8 of the first and half of 16
    assert forecast.left(1.5) == pytest.approx(8.0)


def test_a_prefix_that_is_read_once_costs_nothing_more(clock, capsys):
    """Of 100 tokens 50 are shared: the pace is 0.02 s a token, and the second document reads 150."""
    forecast = Forecast(work([(100, 40), (200, 80)], shared=50), 0)
    forecast.begin(WARM)
    assert "about 26 s" in capsys.readouterr().out  # (2 + 6) + (6 + 12)


def test_a_resumed_run_counts_what_is_left_alone(clock, capsys):
    forecast = Forecast(work([(100, 40), (200, 80)]), 1)
    forecast.begin(WARM)
    assert "about 16 s for 1 document " in capsys.readouterr().out
    clock[0] = 5.0
    assert forecast.left(1) is None
    assert forecast.left(2) == 0.0


def test_only_the_first_warm_up_is_asked_and_failed_ones_tell_nothing(clock, capsys):
    forecast = Forecast(work([(100, 40)]), 0)
    forecast.begin([{"method": "sps", "task": "t", "finish": "error"}])
    forecast.begin(WARM)
    assert capsys.readouterr().out == "" and forecast.left(1) is None

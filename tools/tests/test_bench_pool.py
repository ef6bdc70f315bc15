"""The simulation of many workers (bench_pool.py), by cases that are worked out by hand."""

import pytest
from bench_pool import simulate


def test_a_driver_that_costs_nothing_leaves_all_time_to_workers():
    """One worker: two shards of three documents, back to back."""
    assert simulate(1, 2, 3, 2.0, 0, 0) == 1


def test_one_worker_waits_for_the_driver_at_the_end_of_each_shard():
    """Documents end at 2, 4, 6; the third message is heard at 6.5, the end at 7.5; the next shard ends 7.5 later."""
    assert simulate(1, 2, 3, 2.0, 0.5, 1.0) == pytest.approx(12 / 15)


def test_a_driver_that_is_full_sets_the_pace():
    """Four workers send a message a second each, and the driver takes half a second for one: about half is lost."""
    share = simulate(4, 8, 100, 1.0, 0.5, 0.0)
    assert share == pytest.approx(0.5, abs=0.02)

"""Counting what watchers received: lost, repeated and late changes must not cancel out."""

import asyncio

from bench.cells import Deliveries


def test_a_gap_and_a_repetition_are_both_counted() -> None:
    deliveries = Deliveries(watchers=1)
    deliveries.expect(5)
    for number in (0, 1, 1, 4):
        deliveries.take(0, number, 1.0)
    assert (deliveries.received, deliveries.lost, deliveries.repeated) == (3, 2, 1)
    assert deliveries.complete.is_set()


def test_a_series_is_complete_when_every_watcher_has_its_last_change() -> None:
    deliveries = Deliveries(watchers=2)
    deliveries.expect(1)
    deliveries.take(0, 0, 1.0)
    assert not deliveries.complete.is_set()
    deliveries.take(1, 0, 1.0)
    assert deliveries.complete.is_set()


def test_a_straggler_of_the_series_before_counts_for_nothing() -> None:
    deliveries = Deliveries(watchers=1)
    deliveries.expect(3)
    deliveries.expect(1)
    deliveries.take(0, 2, 1.0)
    assert (deliveries.received, deliveries.repeated) == (0, 0)


def test_what_has_not_come_at_the_limit_is_lost() -> None:
    deliveries = Deliveries(watchers=2)
    deliveries.expect(4)
    deliveries.take(0, 0, 1.0)
    asyncio.run(deliveries.wait(seconds_max=0.01))
    assert deliveries.lost == 7


def test_receivers_read_the_number_and_the_time_out_of_the_value() -> None:
    deliveries = Deliveries(watchers=1)
    deliveries.expect(1)
    deliveries.receiver(0)(b"%020d%010d" % (0, 0) + b"x")
    assert deliveries.received == 1
    assert deliveries.delays_ms[0] > 0

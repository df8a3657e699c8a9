"""Settings of computation, for the process and inside a block."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from embstore.config import Settings, config, settings
from embstore.errors import InvalidValueError


def test_a_block_restores_what_held_before() -> None:
    assert settings() == Settings()
    with config(threads=2, memory="1GiB") as inside:
        assert inside == settings() == Settings(threads=2, memory="1GiB")
        assert inside.nbytes == 2**30
        with config(device="cpu"):
            assert settings() == Settings(device="cpu", threads=2, memory="1GiB")
        assert settings() == inside
    assert settings() == Settings()


def test_without_a_block_settings_stay() -> None:
    with config():
        config(threads=3)
        assert settings().threads == 3
    assert settings() == Settings()


def test_threads_do_not_change_the_settings_of_each_other() -> None:
    first, second = Event(), Event()
    seen = []

    def block(threads: int, mine: Event, other: Event) -> None:
        with config(threads=threads):
            mine.set()
            other.wait(10)
            seen.append((threads, settings().threads))

    workers = [Thread(target=block, args=(2, first, second)), Thread(target=block, args=(3, second, first))]
    with config(memory="1GiB"):
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert settings() == Settings(memory="1GiB")
    assert sorted(seen) == [(2, 2), (3, 3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"thread": 2}, "unknown setting 'thread'; allowed are device, threads, memory, progress"),
        ({"threads": 0}, "threads 0 is not allowed: give 1 to 1,024"),
        ({"memory": "much"}, "memory 'much' is not a size: give bytes, or a number with a unit such as 500MB or 2GiB"),
        ({"device": 1}, "device 1 is not allowed: give a name, such as cpu or cuda:0"),
        ({"progress": "yes"}, "progress 'yes' is not allowed: give True, False or a function"),
    ],
)
def test_a_wrong_setting_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        config(**changes)
    assert str(caught.value) == message
    assert settings() == Settings()

from drivetrain.launch.watchdog import Watchdog
from drivetrain.runtime.heartbeat import PHASES, SIZE, Heartbeat, HeartbeatMemory, HeartbeatSlot


def watch(dog, seconds, signs):
    """Look once a second; `signs(t)` gives {rank: Sign}. The time and the hang that was found, or None."""
    for t in range(seconds):
        hang = dog.look(signs(t), float(t))
        if hang:
            return t, hang
    return None


def sign(beats, moves, phase="forward", seconds=0.1, step=5):
    return HeartbeatSlot(beats, moves, step, phase, seconds)


def test_who_moves_does_not_hang():
    assert watch(Watchdog(10), 500, lambda t: {0: sign(t, t), 1: sign(t, 2 * t)}) is None


def test_p15_a_stopped_process_is_found_after_ten_seconds_though_the_others_beat():
    def signs(t):
        return {0: sign(t, min(t, 20), "reduce"), 1: sign(min(t, 20), min(t, 20))}

    t, hang = watch(Watchdog(10), 500, signs)
    assert 30 < t <= 31
    assert set(hang.signs) == {1}
    assert not hang.waits
    assert "rank 1 at step 5 (forward)" in str(hang)


def test_a_process_that_beats_and_gets_nowhere_hangs_and_the_one_that_others_wait_for_is_named():
    t, hang = watch(Watchdog(10), 500, lambda t: {0: sign(t, 3, "reduce"), 1: sign(t, 3, "data")})
    assert t == 11
    assert set(hang.signs) == {1}
    assert not hang.waits
    _, hang = watch(Watchdog(10), 500, lambda t: {0: sign(t, 3, "reduce"), 1: sign(t, 3, "pulse")})
    assert set(hang.signs) == {0, 1}
    assert hang.waits


def test_one_process_that_gets_somewhere_is_enough():
    assert watch(Watchdog(10), 500, lambda t: {0: sign(t, t), 1: sign(t, 3, "reduce")}) is None


def test_slow_steps_may_take_three_times_as_long_as_usual():
    def signs(t):
        return {0: sign(t, min(t // 20, 10), seconds=20.0)}

    t, _ = watch(Watchdog(10), 500, signs)
    assert t == 200 + 61


def test_opening_data_may_take_long_but_beats_may_not_stop_for_ever():
    assert watch(Watchdog(10, slow=600), 590, lambda t: {0: sign(t, 1, "start", 0.0)}) is None
    t, _ = watch(Watchdog(10, slow=600), 700, lambda t: {0: sign(t, 1, "start", 0.0)})
    assert t == 601
    t, _ = watch(Watchdog(10), 700, lambda t: {0: sign(1, 1, "start", 0.0)})
    assert t == 31


def test_signs_are_seen_by_who_shares_the_memory():
    signs = HeartbeatMemory(3)
    heartbeat = Heartbeat.shared(signs.descriptor, 1)
    heartbeat.step, heartbeat.seconds = 7, 0.25
    for phase in PHASES:
        heartbeat.enter(phase)
    assert signs.look()[1] == HeartbeatSlot(0, len(PHASES), 7, "teardown", 0.25)
    assert signs.look()[0].moves == signs.look()[2].moves == 0
    signs.clear()
    assert signs.look()[1].moves == 0
    signs.close()
    assert SIZE == 64

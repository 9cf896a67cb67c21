"""The clock of an emulated engine."""

from switchyard.emulate.pace import Pace


class Real:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_time_passes_faster_slower_and_not_at_all():
    real = Real()
    pace = Pace(real, speedup=20)
    real.now_s += 1
    assert pace.now_s() == 20
    assert pace.real_s_until(40) == 1
    pace.set_rate(0.5)
    real.now_s += 1
    assert pace.now_s() == 30
    assert pace.real_s_until(40) == 1
    pace.set_rate(0)
    real.now_s += 100
    assert pace.now_s() == 30
    assert pace.real_s_until(40) is None
    pace.set_rate(1)
    real.now_s += 1
    assert pace.now_s() == 50
    assert pace.real_s_until(40) == 0

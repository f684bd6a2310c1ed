"""The known spreads of `compare` are those of the stored results that they name."""

import compare as benchmark
import pytest

from stoker.analysis.compare import RULES


@pytest.mark.parametrize(
    ("machine", "figure", "rule"),
    [
        ("two-cores-cpu", "total_s", RULES.cpu_spread),
        ("h200", "total_s", RULES.gpu_spread),
        ("h200", "first_s", RULES.first_spread),
    ],
)
def test_a_known_spread_is_the_measured_one(machine: str, figure: str, rule: float) -> None:
    assert benchmark.spread(machine, figure)[0] == pytest.approx(rule, abs=0.0005)

"""The table of strategies leads to functions, and training refuses what it cannot do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench_tests.models import MODELS
from bench_tests.strategies import REFERENCE, STRATEGIES, find_strategy


@pytest.mark.parametrize("name", [*STRATEGIES, "reference"])
def test_row_leads_to_a_function(name):
    assert callable(find_strategy(name).resolve())


def test_reference_is_not_benchmarked():
    assert REFERENCE not in STRATEGIES.values()
    assert find_strategy("reference") is REFERENCE


def test_unknown_strategy_is_refused_with_the_names():
    with pytest.raises(ValueError, match=r"'zero' is unknown; known: ddp-fp32, .*, zero3, reference"):
        find_strategy("zero")


def test_tables_can_be_read_without_torch():
    """Collecting the suite must be possible where nothing can be trained."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from bench_tests.models import MODELS\n"
        "from bench_tests.strategies import STRATEGIES\n"
        "import bench_tests.test_sharding\n"
        "print(len(MODELS), len(STRATEGIES))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == [str(len(MODELS)), str(len(STRATEGIES))]

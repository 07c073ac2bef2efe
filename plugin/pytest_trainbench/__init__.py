"""pytest-trainbench: regression benchmarks of training steps. Public names for step builders, tests and analyses."""

from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.step import Step
from pytest_trainbench.store.dataframe import load, load_history

__all__ = ["MeshShape", "Plan", "Step", "load", "load_history"]

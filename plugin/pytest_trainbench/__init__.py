"""pytest-trainbench: is training on this hardware still as fast, as small and as right as it was?"""

from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.step import Step
from pytest_trainbench.store.dataframe import load, load_history

__all__ = ["MeshShape", "Plan", "Step", "load", "load_history"]

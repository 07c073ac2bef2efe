"""pytest-trainbench: is training on this hardware still as fast, as small and as right as it was?"""

from pytest_trainbench.frame import load, load_history
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.step import Step

__all__ = ["MeshShape", "Plan", "Step", "load", "load_history"]

"""Predictions of the time and memory of steps on meshes that do not exist yet."""

from hybridflow.analysis.simulation.hardware import Hardware as Hardware
from hybridflow.analysis.simulation.simulate import Simulation as Simulation
from hybridflow.analysis.simulation.simulate import simulate as simulate
from hybridflow.analysis.simulation.sweep import MeshSweep as MeshSweep
from hybridflow.analysis.simulation.sweep import simulate_meshes as simulate_meshes

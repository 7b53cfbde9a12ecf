"""The operations, a family per file. Importing the package makes `core.operators` ready for their records."""

from hybridflow.core import operators as operators

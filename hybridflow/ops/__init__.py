"""The operations, a family per file. Importing the package makes `core.operators` ready for their records."""

import hybridflow.core.operators as operators  # noqa: F401, PLC0414 (registers itself before the first record)

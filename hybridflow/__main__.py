"""``python -m hybridflow`` is the ``hybridflow`` command."""

from hybridflow.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m hybridflow.models``: the table of the zoo."""

from hybridflow.models.figures import main

if __name__ == "__main__":
    main()

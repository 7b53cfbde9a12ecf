"""The process-wide switches behind `hf.config`."""

from __future__ import annotations


class Settings:
    """What `hf.config` has set.

    Attributes:
        eager: compiled functions run op by op.
        checks: compiled functions check what only values can tell, such as indices.
    """

    __slots__ = ("checks", "eager", "plain")

    def __init__(self) -> None:
        self.eager = False
        self.checks = True
        self.plain = True

    def set(self, *, eager: bool | None = None, checks: bool | None = None) -> None:
        """Change switches; None leaves one as it is."""
        self.eager = self.eager if eager is None else eager
        self.checks = self.checks if checks is None else checks
        self.plain = self.checks and not self.eager  # the one thing that a call on the fast path asks


SETTINGS = Settings()

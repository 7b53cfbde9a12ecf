"""Several processes that run one program: who they are, where they meet, and how they end together."""

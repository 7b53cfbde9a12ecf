"""Code that passes share: the pass type, graph rebuilding, and facts about how XLA runs graphs."""

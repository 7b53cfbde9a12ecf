"""What passes share: what a pass is, rebuilding graphs, and facts about what XLA makes of them."""

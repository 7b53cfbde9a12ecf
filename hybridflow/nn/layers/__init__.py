"""The layers, written as users write theirs: a compiled function converts their code and guards their attributes."""

"""The layers, written as a user would write them: a compiled function converts their code and watches their objects."""

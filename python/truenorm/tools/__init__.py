"""`python -m truenorm`: norm layers of checkpoints, and two norms against each other. See docs/tools.md."""

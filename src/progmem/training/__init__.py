"""Training without labels: one loop, exact resume, any number of processes."""

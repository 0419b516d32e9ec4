"""Training, without labels and with them: one trainer, exact resume, any number of processes."""

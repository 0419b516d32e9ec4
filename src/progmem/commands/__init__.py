"""What `progmem probe` does: models, data, probes, results and tables put together."""

"""Forecasts of a user's own series: the parts that `progmem.PMTForecaster` is made of."""

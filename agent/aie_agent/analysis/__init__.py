"""Pure functions of samples: rates, quantiles, memory. Time is an argument."""

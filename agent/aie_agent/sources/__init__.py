"""Each source turns one outside thing into samples: StatsD packets, /proc, an engine's metrics page."""

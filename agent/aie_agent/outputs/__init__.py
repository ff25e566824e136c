"""Each output only reads: the Prometheus page, the HTTP API with its snapshot and event stream."""

"""What crosses a process boundary: the metric catalogue, the StatsD codec, the Prometheus text format, the API schema.

Imports nothing else of ours, and nothing heavy: `aie_hooks` runs inside other people's engines.
"""

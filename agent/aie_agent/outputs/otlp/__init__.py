"""OTLP: what the store holds, pushed to a collector under OpenTelemetry's names."""

"""The reference inference engine."""

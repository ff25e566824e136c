"""What the alerts are generated and checked by; what is shipped is `aie_alerts`."""

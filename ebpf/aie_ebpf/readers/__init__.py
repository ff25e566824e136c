"""From what programs keep in their maps to parts of a report: one file a group of sets."""

"""The language operators and schedules are written in. Imports nothing else of kgen, and no torch."""

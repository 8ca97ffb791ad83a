"""kgen."""

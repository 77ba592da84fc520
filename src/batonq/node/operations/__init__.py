"""What operators use: metrics, status page, events, retained history."""

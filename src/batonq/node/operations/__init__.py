"""What operators see: metrics, status page, events, retained history."""

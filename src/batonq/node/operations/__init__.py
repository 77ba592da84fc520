"""What operators use: pages beside the APIs, admin token, retained history."""

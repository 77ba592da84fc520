"""A Spark session without set-up, and format("baton")."""

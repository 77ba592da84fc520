"""What operators watch: the state of the whole server at one moment, its metrics, and its recent past."""

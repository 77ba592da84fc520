"""Redrive jobs: started, paused and cancelled; messages chosen, filtered and edited; the rate kept."""

"""The report: one HTML page of what the tables say, with plots, that needs nothing beside itself.

figures.py   what the page shows, as plain numbers, and how they are asked of the tables (Spark)
svg.py       plots: lines, bars, a heat map
page.py      the page
"""

"""The report: a self-contained HTML page about the tables, with plots.

figures.py   the page's numbers, and how they are computed from the tables (Spark)
svg.py       plots: lines, bars, a heat map
page.py      the page
"""

"""The dashboard's view: messages of the contract made into words and bars (view, formats), and the page (render, templates, assets).

It knows neither HTTP nor where messages come from.
"""

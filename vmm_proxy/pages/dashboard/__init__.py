"""The fleet's dashboard: a short history of each card (history), what stands in a guest's rows (view), and the page (render, templates,
assets). It knows neither HTTP nor how guests are asked.
"""

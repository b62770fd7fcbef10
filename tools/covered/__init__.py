"""Branch coverage of the product, in whatever process its code runs."""

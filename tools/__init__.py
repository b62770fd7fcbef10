"""Tools of this repository; no part of the product."""

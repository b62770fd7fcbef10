"""One request to many guests: collected once, watched, or listed."""

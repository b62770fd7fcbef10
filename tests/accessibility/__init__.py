"""Whether people who use a keyboard or a screen reader get along with the pages."""

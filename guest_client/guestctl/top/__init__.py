"""`guestctl top`: what is known of the fleet, the frame made of it, and the screen or the plain output that shows it."""

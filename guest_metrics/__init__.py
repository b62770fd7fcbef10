"""The one table of metric names and the text formatter that guest agent and proxy share."""

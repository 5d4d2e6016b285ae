"""The attention benchmark: a table of time and memory over model widths and sequence lengths, and its accounting."""

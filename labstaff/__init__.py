"""What only an instructor needs: deriving, releasing, judging, grading, the site. No student carries it."""

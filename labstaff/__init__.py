"""What only an instructor needs: deriving, releasing, grading, grading, the site. No student carries it."""

"""The package for instructors: deriving, releasing, grading, the site. It is not in the students' release."""

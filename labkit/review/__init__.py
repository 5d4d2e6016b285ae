"""`lab review`: the student's own tests, run on right and wrong versions of a lab's module."""

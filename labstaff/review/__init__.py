"""Reviews for instructors: the versions, the model answers, what a release and a course hand out, and grading."""

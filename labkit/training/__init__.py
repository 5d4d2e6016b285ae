"""`lab train`: a small language model learns the course's chapters with a student's attention."""

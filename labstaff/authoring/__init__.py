"""Alternative solutions and mistakes, on which each lab's suite is tested."""

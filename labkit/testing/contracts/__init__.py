"""What every attention owes, written once: a lab's test class inherits it and says how its function is called."""

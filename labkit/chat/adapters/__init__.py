"""How the functions of each lab serve as the model's attention or cache: one file for each lab, found by its number."""

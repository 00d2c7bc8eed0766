"""An imitation of the program that batch scripts start beside the ranks."""

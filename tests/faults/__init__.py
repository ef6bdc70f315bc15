"""What may go wrong while specbench works, done to the command itself: see main.py for the list."""

"""The scripts in examples/, each at a small size."""

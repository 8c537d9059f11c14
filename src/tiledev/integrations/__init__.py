"""What other libraries need to use the device; each module is imported by whom it concerns.

Most libraries need nothing of this: docs/ecosystem.md has them.
"""

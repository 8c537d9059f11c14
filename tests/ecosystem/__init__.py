"""Other libraries on the device, each against itself on the CPU: docs/ecosystem.md."""

"""tiledev.nn and attention, on the device and on the CPU, without any fallback."""

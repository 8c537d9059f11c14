#pragma once

namespace tiledev {

// Tells PyTorch about the device: availability, generators, pinned memory, storage resizing. Must
// happen once, before the first tensor.
void register_hooks();

}  // namespace tiledev

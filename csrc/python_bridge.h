#pragma once

namespace tiledev {

// Installs Python's side of record/bridge.h: source lines, the GIL, Ctrl-C, NotImplementedError.
void install_python_bridge();

}  // namespace tiledev

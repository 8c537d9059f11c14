#pragma once

#include "compile/pipeline.h"

namespace tiledev {

// Checks what must hold after a pass; throws an internal error that names the pass, the node and
// the broken rule. Used in debug builds and under TILEDEV_VERIFY=1.
void verify_compilation(const Compilation& c, const char* pass);

}  // namespace tiledev

#pragma once

#include <ATen/core/Generator.h>

namespace tiledev {

// The generator that device ops use when none is given.
const at::Generator& default_generator();

// A new generator of the device, seeded like a new CPU generator.
at::Generator make_generator();

}  // namespace tiledev

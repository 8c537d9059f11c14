#pragma once

#include <torch/library.h>

namespace tiledev {

// The kernels that no fallback can supply, by file. Each function registers its own.
void register_factories(torch::Library& m);  // empty, empty_strided
void register_views(torch::Library& m);      // view, as_strided ..., set_, resize_
void register_transfers(torch::Library& m);  // copies from and to the host, item
void register_composites(
    torch::Library& m);  // ops that PyTorch fuses for devices but not for the CPU
void register_reductions(torch::Library& m);  // of all elements of a large tensor
void register_sync_batch_norm(torch::Library& m);

}  // namespace tiledev

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "compile/product_call.h"
#include "runtime/packed_matrices.h"
#include "runtime/shared_products.h"

namespace tiledev {

// What the products of a segment use together.
struct ProductContext {
  const PackedMatrices& packed;
  SharedProducts* shared;  // or null
  size_t worker;           // that runs the tile
};

// The product of a step, on tensors that are cut to a tile. `accumulate`: onto what is in the
// result. False if its arguments ask for something else than kernels/products does.
bool run_product(const ProductCall& call, const std::vector<at::Tensor>& tensors,
                 const std::vector<c10::IValue>& args, bool accumulate,
                 const ProductContext& context, c10::Allocator& memory);

}  // namespace tiledev

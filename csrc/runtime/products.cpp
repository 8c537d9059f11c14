#include "runtime/products.h"

namespace tiledev {

namespace {

bool is_one(const c10::IValue& value) {
  return value.toScalar().toDouble() == 1;
}

}  // namespace

bool run_product(const ProductCall& call, const std::vector<at::Tensor>& tensors,
                 const std::vector<c10::IValue>& args, bool accumulate,
                 const ProductContext& context, c10::Allocator& memory) {
  if (call.row >= 0 && !(is_one(args[3]) && is_one(args[4]))) {
    return false;  // addmm's beta and alpha
  }
  const at::Tensor &a = tensors[call.a], &b = tensors[call.b], &out = tensors.back();
  Product product;
  product.m = a.size(0);
  product.k = a.size(1);
  product.n = b.size(1);
  product.a = view_of(a);
  product.b = view_of(b);
  product.row = call.row >= 0 ? tensors[call.row].const_data_ptr<float>() : nullptr;
  product.accumulate = accumulate;
  product.c = out.mutable_data_ptr<float>();
  product.c_stride = out.stride(0);
  PackedMatrix* const shared =
      call.packed >= 0 ? context.packed[static_cast<size_t>(call.packed)].get() : nullptr;
  if (shared != nullptr) {
    product.packed_rows = product.k;
    product.packed = shared->get(b, memory);
  }
  if (context.shared != nullptr) {
    context.shared->multiply(context.worker, product);
  } else {
    multiply(product);
  }
  return true;
}

}  // namespace tiledev

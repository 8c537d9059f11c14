#pragma once

#include <exception>
#include <unordered_map>

#include "record/call.h"

namespace tiledev {

// The signatures of one op, by key. Protected by the session's lock.
class SignatureCache {
 public:
  SignaturePtr find(const std::vector<int64_t>& key) const;
  void insert(SignaturePtr signature);

 private:
  static constexpr size_t kMaxSignatures = 16384;
  std::unordered_multimap<uint64_t, SignaturePtr> signatures_;
  mutable SignaturePtr recent_;
};

// Thrown when an op cannot be recorded with these arguments: the fallback must run it.
struct CannotRecord {
  const char* reason;
  std::exception_ptr cause = nullptr;  // what to raise where the host is no way out
};

// Runs the op on stand-ins (Meta tensors; harmless values on the CPU where that says more) and
// makes the signature. Raises what the CPU raises for wrong shapes and dtypes. May take the
// interpreter's lock (most Meta kernels are Python): call it without the session's lock.
SignaturePtr infer_signature(const CallView& call);

// Raises if the op refuses operands that overlap in memory the way these do.
void check_overlap(const CallView& call);

}  // namespace tiledev

#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tiledev {

// In its scope, ops on the calling thread reach kernels directly: a caller's autograd and autocast
// have had their turn before the device was asked.
class PlainDispatch {
 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

}  // namespace tiledev

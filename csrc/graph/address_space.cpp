#include "graph/address_space.h"

#include <c10/util/Exception.h>

#include <bit>

#ifdef _WIN32
#error "tiledev needs POSIX mmap"
#else
#include <sys/mman.h>
#endif

namespace tiledev {

namespace {

constexpr size_t kMinBytes = 64;  // an address is as aligned as the CPU allocator's
constexpr size_t kReserve[] = {size_t{1} << 45, size_t{1} << 42, size_t{1} << 38};

void* reserve(size_t nbytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void* base = mmap(nullptr, nbytes, PROT_NONE, flags, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

}  // namespace

AddressSpace::AddressSpace() {
  for (const size_t nbytes : kReserve) {
    if (void* base = reserve(nbytes)) {
      begin_ = next_ = reinterpret_cast<uintptr_t>(base);
      end_ = begin_ + nbytes;
      return;
    }
  }
  TORCH_CHECK(false, "[tiledev] could not reserve an address range for device pointers; ",
              "raise the limit on virtual memory (ulimit -v)");
}

int AddressSpace::size_class(size_t nbytes) {
  return std::bit_width((nbytes < kMinBytes ? kMinBytes : nbytes) - 1);
}

uintptr_t AddressSpace::allocate(size_t nbytes) {
  const int klass = size_class(nbytes);
  if (klass >= kClasses) {
    return 0;
  }
  const uintptr_t length = uintptr_t{1} << klass;
  auto& free = free_[klass];
  // A small reserve of free addresses stays unused, so that no address returns at once.
  if (free.size() > 64 || (!free.empty() && length > end_ - next_)) {
    const uintptr_t address = free.front();
    free.pop_front();
    return address;
  }
  if (length > end_ - next_) {
    return 0;
  }
  const uintptr_t address = next_;
  next_ += length;
  return address;
}

void AddressSpace::release(uintptr_t address, size_t nbytes) {
  const int klass = size_class(nbytes);
  free_[klass].push_back(address);
}

bool AddressSpace::contains(uintptr_t address) const {
  return address >= begin_ && address < end_;
}

}  // namespace tiledev

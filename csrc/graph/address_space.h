#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace tiledev {

// Device addresses: unique, never null, as long as the buffer's bytes, and not readable. They come
// from a reserved range without any access right, so that reading device memory on the host by
// accident faults at once instead of yielding stale numbers. Not thread safe: the pool's lock.
class AddressSpace {
 public:
  AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // 0 if the range has no room for so many bytes.
  uintptr_t allocate(size_t nbytes);
  void release(uintptr_t address, size_t nbytes);
  bool contains(uintptr_t address) const;
  size_t nbytes() const { return end_ - begin_; }  // of the range

 private:
  static constexpr int kClasses = 48;
  static int size_class(size_t nbytes);

  uintptr_t begin_ = 0;
  uintptr_t next_ = 0;
  uintptr_t end_ = 0;
  // Oldest first: an address comes back as late as possible, which makes stale uses visible.
  std::array<std::deque<uintptr_t>, kClasses> free_;
};

}  // namespace tiledev

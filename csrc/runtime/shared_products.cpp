#include "runtime/shared_products.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

namespace tiledev {

namespace {

constexpr double kPartFlops = 4e6;  // some 40 us

// Columns of a product, in whole panels.
Product part_of(const Product& whole, int64_t begin, int64_t end) {
  Product part = whole;
  const int64_t column = begin * kPanel;
  part.n = std::min(whole.n, end * kPanel) - column;
  part.b.data += column * whole.b.column_stride;
  part.c += column;
  if (whole.packed != nullptr) {
    part.packed += column * whole.packed_rows;
  }
  if (whole.row != nullptr) {
    part.row += column;
  }
  return part;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

bool SharedProducts::Slot::work() {
  const int64_t all = panels(product.n);
  bool any = false;
  while (true) {
    const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= parts) {
      return any;
    }
    try {
      tiledev::multiply(part_of(product, all * i / parts, all * (i + 1) / parts));
    } catch (const std::bad_alloc&) {
      failed.store(true, std::memory_order_relaxed);
    }
    any = true;
  }
}

void SharedProducts::multiply(size_t worker, const Product& product) {
  const int helpers = helpers_.load(std::memory_order_relaxed);
  const double flops = 2. * static_cast<double>(product.m) * static_cast<double>(product.n) *
                       static_cast<double>(product.k);
  // Two parts for each worker, since one that helps may come late.
  const int64_t parts = std::min(
      {int64_t{2} * (helpers + 1), panels(product.n), static_cast<int64_t>(flops / kPartFlops)});
  if (helpers == 0 || parts < 2) {
    tiledev::multiply(product);
    return;
  }
  Slot& slot = slots_[worker];
  slot.product = product;
  slot.parts = parts;
  slot.next.store(0, std::memory_order_relaxed);
  slot.open.store(true);
  slot.work();
  slot.open.store(false);
  while (slot.active.load() > 0) {
    pause();
  }
  if (slot.failed.exchange(false, std::memory_order_relaxed)) {
    throw std::bad_alloc();
  }
}

bool SharedProducts::help(const std::function<bool()>& done) {
  constexpr int kSpins = 1000;  // some 20 us
  constexpr std::chrono::microseconds kNap{20};
  helpers_.fetch_add(1, std::memory_order_relaxed);
  bool helped = false;
  for (int idle = 0; !done(); ++idle) {
    for (size_t i = 0; i < count_; ++i) {
      Slot& slot = slots_[i];
      if (!slot.open.load(std::memory_order_relaxed)) {
        continue;
      }
      slot.active.fetch_add(1);
      if (slot.open.load() && slot.work()) {
        idle = 0;
        helped = true;
      }
      slot.active.fetch_sub(1);
    }
    if (idle < kSpins) {
      pause();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
  helpers_.fetch_sub(1, std::memory_order_relaxed);
  return helped;
}

}  // namespace tiledev

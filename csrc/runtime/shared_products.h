#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/products.h"

namespace tiledev {

// Products of the tiles of a segment, with which workers help that have nothing else to do. Where
// each worker sums up a lane of tiles, nothing else evens out a slow core. A part is a range of
// columns, so the result has the same bits whoever helps.
class SharedProducts {
 public:
  explicit SharedProducts(size_t workers) : count_(workers), slots_(new Slot[workers]) {}

  // Called by a worker for a tile of its own.
  void multiply(size_t worker, const Product& product);
  // Takes parts of the others' products until `done`. Whether there were any.
  bool help(const std::function<bool()>& done);

 private:
  // The product that a worker shares at the moment.
  struct alignas(64) Slot {
    // Those who count themselves among `active` and then see it open may use the rest.
    std::atomic<bool> open{false};
    std::atomic<int> active{0};
    std::atomic<int64_t> next{0};
    int64_t parts = 0;
    Product product;

    std::atomic<bool> failed{false};  // there was no memory for a part

    bool work();  // whether there was a part left
  };

  const size_t count_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<int> helpers_{0};
};

}  // namespace tiledev

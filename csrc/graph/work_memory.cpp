#include "graph/work_memory.h"

#include <memory>
#include <utility>

#include "graph/buffer.h"

namespace tiledev {

namespace {

struct Loan {
  c10::DataPtr memory;
  Gauge& gauge;
  int64_t nbytes;

  ~Loan() { gauge.remove(nbytes); }
};

void end_loan(void* loan) {
  delete static_cast<Loan*>(loan);
}

}  // namespace

c10::DataPtr WorkMemory::allocate(size_t nbytes) {
  c10::DataPtr memory = pool_.take_for_work(nbytes);
  void* data = memory.get();
  Gauge& gauge = pool_.counters().work;
  gauge.add(static_cast<int64_t>(nbytes));
  auto loan = std::make_unique<Loan>(std::move(memory), gauge, static_cast<int64_t>(nbytes));
  return {data, loan.release(), &end_loan, c10::Device(c10::DeviceType::CPU)};
}

void WorkMemory::hand_over(c10::DataPtr& memory) {
  if (memory.get_deleter() == &end_loan) {
    c10::DataPtr lent = std::move(static_cast<Loan*>(memory.get_context())->memory);
    memory = std::move(lent);  // and the loan ends
  }
}

void WorkMemory::copy_data(void* to, const void* from, size_t count) const {
  default_copy_data(to, from, count);
}

bool WorkMemory::scarce() const {
  return pool_.limit() != BufferPool::kNoLimit;
}

}  // namespace tiledev

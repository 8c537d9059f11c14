#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <utility>

#include "record/host_call.h"
#include "record/recorder.h"
#include "record/session.h"
#include "record/storage.h"

namespace tiledev {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

// Hands out buffers. Their memory comes when a node needs it, so the statistics count that.
class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    Session::get().check_usable();
    return make_data_ptr(make_buffer(nbytes));
  }

  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "[tiledev] memory of the device cannot be copied by "
                                "address; use Tensor.copy_ or UntypedStorage.clone");
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { Session::get().empty_cache(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const auto& counters = Session::get().buffers().counters();
    DeviceStats stats;
    const auto fill = [](StatArray& array, const Gauge& gauge) {
      Stat& stat = array[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      stat.current = gauge.current();
      stat.peak = gauge.peak();
      stat.allocated = gauge.added();
      stat.freed = gauge.removed();
    };
    for (StatArray* bytes : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      fill(*bytes, counters.allocated);
    }
    for (StatArray* count : {&stats.allocation, &stats.active}) {
      fill(*count, counters.buffers);
    }
    fill(stats.reserved_bytes, counters.reserved);
    fill(stats.segment, counters.segments);
    stats.num_alloc_retries = counters.retries.load();
    stats.num_ooms = counters.failures.load();
    stats.num_device_alloc = counters.segments.added();
    stats.num_device_free = counters.segments.removed();
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex) override {
    Session::get().buffers().counters().reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex) override {
    Session::get().buffers().counters().reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const auto total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
#ifdef _SC_AVPHYS_PAGES
    return {static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page, total};
#else
    return {total, total};
#endif
  }
};

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, new Allocator())

}  // namespace

}  // namespace tiledev

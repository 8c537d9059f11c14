#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>
#include <memory>

#include "record/session.h"

namespace tiledev {

namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

// Host clock readings: the device's tasks run on the host.
class ProfilerStubs final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event,
              int64_t* cpu_ns) const override {
    if (device != nullptr) {
      *device = 0;
    }
    const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::steady_clock::now().time_since_epoch())
                            .count();
    *event = std::make_shared<int64_t>(now);
    if (cpu_ns != nullptr) {
      *cpu_ns = now;
    }
  }
  float elapsed(const ProfilerVoidEventStub* from, const ProfilerVoidEventStub* to) const override {
    const auto read = [](const ProfilerVoidEventStub* event) {
      return *static_cast<const int64_t*>(event->get());
    };
    return static_cast<float>(read(to) - read(from)) / 1000.0f;  // microseconds
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override { op(0); }
  void synchronize() const override { Session::get().wait_all(); }
};

const bool registered = [] {
  static ProfilerStubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  return true;
}();

}  // namespace

}  // namespace tiledev

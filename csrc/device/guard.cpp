#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include "record/session.h"
#include "record/storage.h"

namespace tiledev {

namespace {

// One device with one stream, on which everything runs in program order. Autograd asks for events
// between nodes; order is kept without them, so they hold nothing.
struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }

  c10::Device exchangeDevice(c10::Device device) const override {
    check(device);
    return getDevice();
  }
  c10::Device getDevice() const override { return c10::Device(kDevice, 0); }
  void setDevice(c10::Device device) const override { check(device); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}

  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  void* getStreamNativeHandle(const c10::Stream) const { return nullptr; }
  bool queryStream(const c10::Stream&) const override { return !Session::get().busy(); }
  void synchronizeStream(const c10::Stream&) const override { Session::get().wait_all(); }
  bool isStreamCapturing(const c10::Stream&) const { return false; }

  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    static char token;
    *event = &token;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override { return event == nullptr || !Session::get().busy(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      Session::get().wait_all();
    }
  }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "[Event.elapsed_time] c10 events of tiledev keep no time; "
                                "use torch.tiledev.Event");
  }

  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  // As the CPU: every dtype that has kernels there.
  c10::DeviceCapability getDeviceCapability(c10::Device) const {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = (1ULL << c10::NUMBER_OF_DEVICE_CAPABILITIES) - 1;
    return capability;
  }
  void synchronizeDevice(const c10::DeviceIndex) const override { Session::get().wait_all(); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDevice, 0)); }
  static void check(c10::Device device) {
    TORCH_CHECK(device.type() == kDevice && device.index() <= 0,
                "[set_device] expected tiledev or tiledev:0, got ", device,
                "; there is one tiledev device");
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

}  // namespace

}  // namespace tiledev

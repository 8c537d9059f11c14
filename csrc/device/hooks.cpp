#include "device/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>

#include <map>
#include <mutex>

#include "device/generator.h"
#include "record/session.h"
#include "record/storage.h"

namespace tiledev {

namespace {

// Host memory that is marked as pinned. The device reads ordinary host memory just as well, so
// pinning is a mark and nothing else; programs that ask for it keep working.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    c10::DataPtr data = c10::GetCPUAllocator()->allocate(nbytes);
    void* const address = data.get();
    if (address == nullptr) {
      return data;
    }
    {
      const std::lock_guard lock(mutex_);
      ranges_[address] = nbytes;
    }
    auto* owner = new c10::DataPtr(std::move(data));
    return {address, owner, &PinnedMemory::release, c10::Device(c10::kCPU)};
  }

  bool contains(const void* address) {
    const std::lock_guard lock(mutex_);
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin()) {
      return false;
    }
    --it;
    return static_cast<const char*>(address) < static_cast<const char*>(it->first) + it->second;
  }

  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  static PinnedMemory& get() {
    static auto* memory = new PinnedMemory();
    return *memory;
  }

 private:
  static void release(void* context) {
    const std::unique_ptr<c10::DataPtr> owner(static_cast<c10::DataPtr*>(context));
    PinnedMemory& memory = get();
    const std::lock_guard lock(memory.mutex_);
    memory.ranges_.erase(owner->get());
  }

  std::mutex mutex_;
  std::map<const void*, size_t> ranges_;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex device) const override { check(device); }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    check(device);
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }

  bool isPinnedPtr(const void* data) const override { return PinnedMemory::get().contains(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::get(); }
  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(Session::get().buffers().addresses().contains(reinterpret_cast<uintptr_t>(data)),
                "[tiledev] this address does not belong to a tiledev tensor");
    return {kDevice, 0};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    check(device);
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return make_generator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), nbytes);
  }

 private:
  static void check(c10::DeviceIndex device) {
    TORCH_CHECK(device <= 0, "[tiledev] invalid device index ", static_cast<int>(device),
                "; there is one tiledev device, tiledev:0");
  }
};

}  // namespace

void register_hooks() {
  static auto* hooks = new Hooks();
  at::RegisterPrivateUse1HooksInterface(hooks);
}

}  // namespace tiledev

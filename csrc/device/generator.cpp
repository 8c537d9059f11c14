#include "device/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "graph/random_stream.h"
#include "record/call.h"
#include "record/session.h"
#include "record/storage.h"

namespace tiledev {

namespace {

// Draws on the host with PyTorch's CPU generator, so that a seed gives the CPU's numbers. Drawing
// happens when nodes run; seeding and setting the state are nodes too, reading the state waits.
class GeneratorImpl final : public c10::GeneratorImpl, public RandomSource {
 public:
  explicit GeneratorImpl(at::Generator cpu)
      : c10::GeneratorImpl(c10::Device(kDevice, 0),
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        stream_{std::move(cpu), Session::get().buffers().create(0)},
        seed_(stream_.generator.current_seed()) {
    stream_.token->set_external(true);
  }
  ~GeneratorImpl() override { stream_.token->set_external(false); }

  const RandomStream& stream() override { return stream_; }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    in_order("manual_seed", [cpu = stream_.generator, seed]() mutable {
      const std::lock_guard lock(cpu.mutex());
      cpu.set_current_seed(seed);
    });
  }

  void set_offset(uint64_t offset) override {
    settle();
    stream_.generator.set_offset(offset);
  }
  uint64_t get_offset() const override {
    settle();
    return std::as_const(stream_.generator).get_offset();
  }
  uint64_t current_seed() const override { return seed_; }

  uint64_t seed() override {
    const uint64_t seed = c10::detail::getNonDeterministicRandom();
    set_current_seed(seed);
    return seed;
  }

  void set_state(const c10::TensorImpl& state) override {
    // A copy is tried first: a wrong state is an error at the call.
    auto* cpu = at::check_generator<at::CPUGeneratorImpl>(stream_.generator);
    auto next = cpu->clone();
    next->set_state(state);
    seed_ = next->current_seed();
    in_order("set_rng_state", [cpu = stream_.generator, state = next->get_state()]() mutable {
      const std::lock_guard lock(cpu.mutex());
      cpu.unsafeGetGeneratorImpl()->set_state(*state);
    });
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    settle();
    return std::as_const(stream_.generator).get_state().getIntrusivePtr();
  }

  static c10::DeviceType device_type() { return kDevice; }

 private:
  GeneratorImpl* clone_impl() const override {
    settle();
    return new GeneratorImpl(stream_.generator.clone());
  }

  void in_order(const char* name, std::function<void()> body) {
    Session::get().append_host_call(name, stream_.token, std::move(body));
  }
  void settle() const { Session::get().wait_for({stream_.token}, true); }

  RandomStream stream_;
  std::atomic<uint64_t> seed_;
};

const RandomStream& default_random_stream() {
  return dynamic_cast<RandomSource*>(default_generator().unsafeGetGeneratorImpl())->stream();
}

const bool registered = [] {
  set_default_stream(&default_random_stream);
  return true;
}();

}  // namespace

const at::Generator& default_generator() {
  static const auto* generator = new at::Generator(c10::make_intrusive<GeneratorImpl>(
      at::detail::createCPUGenerator(c10::default_rng_seed_val)));
  return *generator;
}

at::Generator make_generator() {
  return at::Generator(c10::make_intrusive<GeneratorImpl>(at::detail::createCPUGenerator()));
}

}  // namespace tiledev
